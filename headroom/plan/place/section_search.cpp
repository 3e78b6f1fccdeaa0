#include "headroom/plan/place/section_search.h"

#include <algorithm>
#include <limits>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

SectionSearch::SectionSearch(const Sections& sections) : sections_(sections) {
  const auto section_count = at(sections.section_count());
  members_begin_.assign(section_count + 1, 0);
  for (size_t b = 0; b < sections.bytes.size(); ++b)
    for (int32_t s = sections.first[b]; s <= sections.last[b]; ++s) ++members_begin_[at(s) + 1];
  for (size_t s = 0; s < section_count; ++s) members_begin_[s + 1] += members_begin_[s];
  members_.resize(members_begin_.back());
  std::vector<size_t> end(members_begin_.begin(), members_begin_.end() - 1);
  for (size_t b = 0; b < sections.bytes.size(); ++b)
    for (int32_t s = sections.first[b]; s <= sections.last[b]; ++s) members_[end[at(s)]++] = static_cast<int32_t>(b);
}

void SectionSearch::reset(int64_t arena_bytes, std::span<const int32_t> ranks) {
  arena_bytes_ = arena_bytes;
  work_ = 0;
  const int32_t block_count = sections_.block_count();
  rank_.assign(ranks.begin(), ranks.end());
  offset_.assign(at(block_count), 0);
  is_placed_.assign(at(block_count), 0);
  next_.resize(at(block_count));
  previous_.resize(at(block_count));
  for (int32_t b = 0; b < block_count; ++b) {
    next_[at(b)] = b + 1;
    previous_[at(b)] = b - 1;
  }
  rest_bytes_ = sections_.total_bytes;
  witness_.resize(rest_bytes_.size());
  for (size_t s = 0; s < witness_.size(); ++s) witness_[s] = members_[members_begin_[s]];
  nodes_.clear();
  components_.clear();
  changes_.clear();
}

SectionSearch::Outcome SectionSearch::run(int64_t arena_bytes, std::span<const int32_t> ranks, int64_t max_work,
                                          bool may_jump) {
  reset(arena_bytes, ranks);
  may_jump_ = may_jump;
  has_jumped_ = false;
  if (arena_bytes < sections_.lower_bound_bytes) return Outcome::kDoesNotFit;
  if (sections_.block_count() == 0) return Outcome::kFits;
  // The root places nothing: its components are those of all blocks.
  const Component all{0, sections_.block_count() - 1, sections_.section_count() - 1, 0, kNone};
  nodes_.push_back({.component = all, .min_offset = 0, .min_rank = 0});
  split(nodes_.back(), 0, 0);
  const Outcome outcome = search(max_work);
  return outcome == Outcome::kDoesNotFit && has_jumped_ ? Outcome::kNotFound : outcome;
}

SectionSearch::Outcome SectionSearch::search(int64_t max_work) {
  while (true) {
    if (work_ > max_work) return Outcome::kNotFound;
    Node& node = nodes_.back();
    if (node.next_component == components_.size()) {
      if (nodes_.size() == 1) return Outcome::kFits;
      components_.resize(node.components_begin);
      nodes_.pop_back();
      continue;
    }
    const Component component = components_[node.next_component++];
    if (nodes_.size() == 1)
      open(component, 0, 0);
    else
      open(component, offset_[at(node.block)], rank_[at(node.block)] + 1);
    while (!place_next(nodes_.back())) {
      const Conflict conflict = nodes_.back().conflict;
      nodes_.pop_back();
      nodes_.back().last_conflict = conflict;
      if (nodes_.size() == 1) return Outcome::kDoesNotFit;
      if (work_ > max_work) return Outcome::kNotFound;
    }
  }
}

void SectionSearch::open(const Component& component, int64_t min_offset, int32_t min_rank) {
  nodes_.push_back({.component = component,
                    .min_offset = min_offset,
                    .min_rank = min_rank,
                    .changes_begin = changes_.size(),
                    .components_begin = components_.size(),
                    .next_component = components_.size()});
}

/// Takes back the placed block of a node and places the next one. Returns false where there is none.
bool SectionSearch::place_next(Node& node) {
  while (true) {
    if (node.block == kNone) {
      node.block = node.component.candidate;
    } else {
      if (!take_back(node)) return false;
      node.min_offset = offset_[at(node.block)];
      node.min_rank = rank_[at(node.block)] + 1;
      node.block = find_candidate(node);
    }
    if (node.block == kNone) {
      const int32_t first = sections_.first[at(node.component.first_block)];
      if (node.conflict.last < 0) node.conflict.add(first, node.component.last_section);
      return false;
    }
    if (place(node)) {
      split(node, offset_[at(node.block)], rank_[at(node.block)] + 1);
      return true;
    }
  }
}

/// Takes back the placed block of a node. Returns false where no other block needs to be tried.
bool SectionSearch::take_back(Node& node) {
  undo(node.changes_begin);
  components_.resize(node.components_begin);
  node.next_component = node.components_begin;
  const Conflict last = node.last_conflict;
  if (may_jump_ && (last.first > sections_.last[at(node.block)] || last.last < sections_.first[at(node.block)])) {
    has_jumped_ = true;
    node.conflict = last;
    return false;
  }
  node.conflict.add(last.first, last.last);
  return node.is_covered;
}

bool SectionSearch::comes_before(int32_t a, int32_t b) const {
  return offset_[at(a)] != offset_[at(b)] ? offset_[at(a)] < offset_[at(b)] : rank_[at(a)] < rank_[at(b)];
}

int32_t SectionSearch::find_candidate(const Node& node) {
  int32_t candidate = kNone;
  for (int32_t b = node.component.first_block; b <= node.component.last_block; b = next_[at(b)]) {
    ++work_;
    const int64_t offset = offset_[at(b)];
    if (offset >= node.component.offset_limit || offset < node.min_offset) continue;
    if (offset == node.min_offset && rank_[at(b)] < node.min_rank) continue;
    if (candidate == kNone || comes_before(b, candidate)) candidate = b;
  }
  return candidate;
}

/// Places the block of a node. Returns false where some section then has no room for its other blocks.
bool SectionSearch::place(Node& node) {
  const auto block = at(node.block);
  changes_.push_back({node.block, kPlaced});
  is_placed_[block] = 1;
  if (previous_[block] >= 0) next_[at(previous_[block])] = next_[block];
  if (next_[block] < sections_.block_count()) previous_[at(next_[block])] = previous_[block];
  for (int32_t s = sections_.first[block]; s <= sections_.last[block]; ++s)
    rest_bytes_[at(s)] -= sections_.padded[block];
  return raise_overlapped(node) && have_sections_room(node);
}

/// Moves the blocks that overlap the placed one above it. Returns false where one of them then ends above the arena.
bool SectionSearch::raise_overlapped(Node& node) {
  const auto placed = at(node.block);
  const int64_t end_bytes = offset_[placed] + sections_.padded[placed];
  node.is_covered = false;
  int32_t b = node.component.first_block;
  if (b == node.block) b = next_[placed];
  for (; b <= node.component.last_block && sections_.first[at(b)] <= sections_.last[placed]; b = next_[at(b)]) {
    ++work_;
    if (sections_.last[at(b)] < sections_.first[placed]) continue;
    node.is_covered = true;
    if (offset_[at(b)] >= end_bytes) continue;
    if (end_bytes + sections_.bytes[at(b)] > arena_bytes_) {
      node.last_conflict = {sections_.first[at(b)], sections_.last[at(b)]};
      return false;
    }
    changes_.push_back({b, offset_[at(b)]});
    offset_[at(b)] = end_bytes;
  }
  return true;
}

bool SectionSearch::have_sections_room(Node& node) {
  const int32_t begin = sections_.first[at(node.component.first_block)];
  const int64_t offset = offset_[at(node.block)];
  work_ += node.component.last_section - begin + 1;
  for (int32_t s = begin; s <= node.component.last_section; ++s) {
    if (rest_bytes_[at(s)] == 0) continue;
    const int64_t most_bytes = arena_bytes_ + sections_.padding_bytes[at(s)] - rest_bytes_[at(s)];
    if (offset > most_bytes) return fail_in(node, s);
    const auto witness = at(witness_[at(s)]);
    if ((is_placed_[witness] != 0 || offset_[witness] > most_bytes) && !find_witness(s, most_bytes))
      return fail_in(node, s);
  }
  return true;
}

/// Notes the blocks that lack room in a section. Returns false.
bool SectionSearch::fail_in(Node& node, int32_t section) const {
  node.last_conflict = {};
  for (size_t i = members_begin_[at(section)]; i < members_begin_[at(section) + 1]; ++i) {
    const auto block = at(members_[i]);
    if (is_placed_[block] == 0) node.last_conflict.add(sections_.first[block], sections_.last[block]);
  }
  return false;
}

/// Looks for a block of a section that is not placed and can have an offset of at most `most_bytes`.
bool SectionSearch::find_witness(int32_t section, int64_t most_bytes) {
  for (size_t i = members_begin_[at(section)]; i < members_begin_[at(section) + 1]; ++i) {
    const int32_t b = members_[i];
    ++work_;
    if (is_placed_[at(b)] != 0 || offset_[at(b)] > most_bytes) continue;
    witness_[at(section)] = b;
    return true;
  }
  return false;
}

/// Adds the components of the blocks of a node that are not placed, in order of time, each with the first block that
/// comes at or after an offset and a rank.
void SectionSearch::split(Node& node, int64_t min_offset, int32_t min_rank) {
  int32_t b = node.component.first_block;
  if (b == node.block) b = next_[at(b)];
  for (; b <= node.component.last_block; b = next_[at(b)]) {
    ++work_;
    if (components_.size() == node.components_begin || sections_.first[at(b)] > components_.back().last_section)
      components_.push_back({b, b, 0, std::numeric_limits<int64_t>::max(), kNone});
    Component& component = components_.back();
    const int64_t offset = offset_[at(b)];
    component.last_block = b;
    component.last_section = std::max(component.last_section, sections_.last[at(b)]);
    component.offset_limit = std::min(component.offset_limit, offset + sections_.padded[at(b)]);
    if (offset < min_offset || (offset == min_offset && rank_[at(b)] < min_rank)) continue;
    if (component.candidate == kNone || comes_before(b, component.candidate)) component.candidate = b;
  }
  for (size_t i = node.components_begin; i < components_.size(); ++i) {
    int32_t& candidate = components_[i].candidate;
    if (candidate != kNone && offset_[at(candidate)] >= components_[i].offset_limit) candidate = kNone;
  }
}

void SectionSearch::undo(size_t change_count) {
  for (; changes_.size() > change_count; changes_.pop_back()) {
    const Change& change = changes_.back();
    const size_t block = at(change.block);
    if (change.old_offset != kPlaced) {
      offset_[block] = change.old_offset;
      continue;
    }
    is_placed_[block] = 0;
    if (previous_[block] >= 0) next_[at(previous_[block])] = change.block;
    if (next_[block] < sections_.block_count()) previous_[at(next_[block])] = change.block;
    for (int32_t s = sections_.first[block]; s <= sections_.last[block]; ++s)
      rest_bytes_[at(s)] += sections_.padded[block];
  }
}

}  // namespace headroom::internal
