#include "headroom/algorithm/separation.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace headroom::internal {
namespace {

size_t at(int position) { return static_cast<size_t>(position); }

}  // namespace

Separation::Separation(int count, const Edges& edges)
    : count_(count),
      begin_(at(count) + 1, 0),
      number_(at(count)),
      low_(at(count)),
      parent_(at(count)),
      seen_(at(count)) {
  // Edges are undirected, and one more edge joins the two ends, so that a part connected with one end is connected with
  // both.
  Edges all = edges;
  all.emplace_back(0, count - 1);
  for (const auto& [a, b] : all) {
    ++begin_[at(a) + 1];
    ++begin_[at(b) + 1];
  }
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  neighbours_.resize(begin_.back());
  std::vector<size_t> fill(begin_.begin(), begin_.end() - 1);
  for (const auto& [a, b] : all) {
    neighbours_[fill[at(a)]++] = b;
    neighbours_[fill[at(b)]++] = a;
  }
}

int64_t Separation::work() const {
  int64_t joints = 0;
  for (int v = 0; v < count_; ++v) joints += is_joint(v) ? 1 : 0;
  return joints * (count_ + static_cast<int64_t>(neighbours_.size()));
}

std::vector<Separation::Segment> Separation::largest_segments() {
  std::vector<Part> parts;
  for (int u = 0; u < count_; ++u) {
    if (is_joint(u)) find_parts(u, parts);
  }
  std::ranges::sort(parts, [](const Part& a, const Part& b) {
    return std::tuple(-a.pair_size, a.source, a.target, a.member) <
           std::tuple(-b.pair_size, b.source, b.target, b.member);
  });
  std::vector<uint8_t> covered(at(count_), 0);
  std::vector<Segment> segments;
  for (size_t i = 0; i < parts.size();) {
    const auto [source, target] = std::pair(parts[i].source, parts[i].target);
    const bool taken = covered[at(source)] == 0 && covered[at(target)] == 0;
    if (taken) segments.push_back({source, target, {}});
    for (; i < parts.size() && parts[i].source == source && parts[i].target == target; ++i) {
      if (taken && covered[at(parts[i].member)] == 0) flood(parts[i], covered, segments.back().inside);
    }
    if (taken) std::ranges::sort(segments.back().inside);
  }
  return segments;
}

std::vector<Separation::Segment> Separation::runs() const {
  std::vector<Segment> segments;
  std::vector<uint8_t> covered(at(count_), 0);
  for (int v = 1; v + 1 < count_; ++v) {
    if (is_joint(v) || covered[at(v)] != 0) continue;
    Segment segment{neighbour(v, false), v, {}};
    while (segment.target + 1 < count_ && !is_joint(segment.target)) {
      covered[at(segment.target)] = 1;
      segment.inside.push_back(segment.target);
      segment.target = neighbour(segment.target, true);
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

std::span<const int> Separation::neighbours(int v) const {
  return std::span(neighbours_).subspan(begin_[at(v)], begin_[at(v) + 1] - begin_[at(v)]);
}

bool Separation::is_joint(int v) const { return begin_[at(v) + 1] - begin_[at(v)] > 2; }

/// Returns the earlier or the later neighbour of a vertex with two neighbours.
int Separation::neighbour(int v, bool later) const {
  const std::span<const int> both = neighbours(v);
  return (both[0] > both[1]) == later ? both[0] : both[1];
}

/// Searches depth first from an end of the node, without `u`: a subtree of a vertex w that has no edge past w is
/// disconnected by removing u and w. Adds those parts that do not lie inside another part found here.
void Separation::find_parts(int u, std::vector<Part>& parts) {
  const int last = count_ - 1;
  const int root = u == last ? 0 : last;
  const size_t old_size = parts.size();
  std::ranges::fill(number_, -1);
  std::ranges::copy(begin_.begin(), begin_.end() - 1, seen_.begin());
  order_.assign(1, root);
  number_[at(root)] = low_[at(root)] = 0;
  for (int v = root;;) {
    if (seen_[at(v)] < begin_[at(v) + 1]) {
      const int w = neighbours_[seen_[at(v)]++];
      if (w == u) continue;
      if (number_[at(w)] >= 0) {
        low_[at(v)] = std::min(low_[at(v)], number_[at(w)]);
        continue;
      }
      parent_[at(w)] = v;
      number_[at(w)] = low_[at(w)] = static_cast<int>(order_.size());
      order_.push_back(w);
      v = w;
      continue;
    }
    if (v == root) break;
    const int above = parent_[at(v)];
    low_[at(above)] = std::min(low_[at(above)], low_[at(v)]);
    const int begin = number_[at(v)];
    const bool comes_off = low_[at(v)] >= number_[at(above)];
    // The root is an end of the node. Either u is the other end, or one of the parts contains it.
    const bool holds_end = above == root && (u == 0 || u == last || number_[0] >= begin);
    if (comes_off && !holds_end && is_joint(above)) {
      while (parts.size() > old_size && parts.back().begin >= begin) parts.pop_back();
      const int size = static_cast<int>(order_.size()) - begin;
      parts.push_back({std::min(u, above), std::max(u, above), v, begin, size, 0});
    }
    v = above;
  }
  std::ranges::sort(parts.begin() + static_cast<std::ptrdiff_t>(old_size), parts.end(), {},
                    [](const Part& part) { return std::tuple(part.source, part.target, part.begin); });
  for (size_t i = old_size; i < parts.size();) {
    size_t end = i;
    int size = 0;
    for (; end < parts.size() && parts[end].source == parts[i].source && parts[end].target == parts[i].target; ++end) {
      size += parts[end].size;
    }
    for (; i < end; ++i) parts[i].pair_size = size;
  }
}

/// Adds the vertices of a part to `inside` that are not covered yet, and marks them as covered.
void Separation::flood(const Part& part, std::vector<uint8_t>& covered, std::vector<int>& inside) const {
  size_t next = inside.size();
  covered[at(part.member)] = 1;
  inside.push_back(part.member);
  for (; next < inside.size(); ++next) {
    for (const int w : neighbours(inside[next])) {
      if (w == part.source || w == part.target || covered[at(w)] != 0) continue;
      covered[at(w)] = 1;
      inside.push_back(w);
    }
  }
}

}  // namespace headroom::internal
