#include "headroom/plan/auto/search/perturbation.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

namespace headroom::internal {
namespace {

constexpr int64_t kAnyPeak = std::numeric_limits<int64_t>::max();

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

void Perturbation::remember() {
  remembered_ = editor_.now();
  has_removals_ = false;
}

void Perturbation::find_removals() {
  if (has_removals_) return;
  removals_.clear();
  const Timeline& now = editor_.now();
  for (int32_t p = 0; p < now.size(); ++p) {
    if (!editor_.is_rerun(p)) continue;
    const std::optional<Removal> removal = find_removal(flat_, now, p, kAnyPeak);
    if (removal) removals_.push_back(*removal);
  }
  editor_.add_work(now.size());
  has_removals_ = true;
}

/// Returns some of removals_ at random, by position.
std::vector<Removal> Perturbation::choose(int count) {
  std::vector<Removal> removals = removals_;
  const auto size = static_cast<int64_t>(removals.size());
  const auto chosen = static_cast<int64_t>(editor_.random(removals.size()));
  const uint64_t kind = parameters_.removes_related ? editor_.random(4) : 3;
  if (kind < 2) {
    // Remove neighbouring reruns.
    const int64_t first = std::clamp<int64_t>(chosen - count / 2, 0, std::max<int64_t>(size - count, 0));
    return {removals.begin() + first, removals.begin() + std::min(first + count, size)};
  }
  // Remove reruns of ops with equal costs, such as the same op in other blocks, or any reruns.
  const int32_t op = removals[static_cast<size_t>(chosen)].op;
  if (kind == 2)
    std::erase_if(removals, [&](const Removal& removal) {
      return flat_.time_ns[at(removal.op)] != flat_.time_ns[at(op)] ||
             flat_.output_bytes[at(removal.op)] != flat_.output_bytes[at(op)];
    });
  std::vector<Removal> removed;
  for (int i = 0; i < count && !removals.empty(); ++i) {
    const auto which = removals.begin() + static_cast<std::ptrdiff_t>(editor_.random(removals.size()));
    removed.push_back(*which);
    removals.erase(which);
  }
  std::ranges::sort(removed, {}, &Removal::position);
  return removed;
}

bool Perturbation::ruin() {
  const int count = 1 + static_cast<int>(editor_.random(static_cast<uint64_t>(parameters_.max_ruined)));
  editor_.assign(remembered_);
  find_removals();
  if (removals_.empty()) return false;
  const std::vector<Removal> removed = choose(count);
  if (!flat_.has_alternatives) {
    try_without(editor_, removed);
    editor_.accept();
    return true;
  }
  // Removals go from the last to the first, so that positions stay valid. Each is looked for anew, because the copy
  // that it relied on may have been removed.
  for (size_t i = removed.size(); i-- > 0;) {
    const std::optional<Removal> removal = find_removal(flat_, editor_.now(), removed[i].position, kAnyPeak);
    if (!removal) continue;
    try_without(editor_, std::span(&*removal, 1));
    editor_.accept();
  }
  return true;
}

/// Postpones an op that may run only once, if an alternative writes what is read for now: the alternative takes its
/// place, and the op runs right before the first read of an output that only the op writes.
void Perturbation::put_off(int32_t position) {
  const Timeline& now = editor_.now();
  const int32_t op = now.run(position);
  const auto shared = std::ranges::find_if(flat_.outputs(op), [&](int32_t v) { return flat_.maker[at(v)] >= 0; });
  if (flat_.once[at(op)] == 0 || shared == flat_.outputs(op).end()) return;
  const int32_t other = flat_.maker[at(*shared)];
  if (!now.is_ready(other, position)) return;
  int32_t needed = now.size();
  for (const int32_t w : flat_.outputs(op)) {
    if (std::ranges::find(flat_.outputs(other), w) != flat_.outputs(other).end()) continue;
    const std::span<const Timeline::Event> later = now.events(w).subspan(at(now.events_before(w, position + 1)));
    if (!later.empty()) needed = std::min(needed, later.front().position);
  }
  std::vector<int32_t>& runs = editor_.edited({{.before = needed, .op = op}}, {});
  runs[at(position)] = other;
  editor_.try_runs(runs);
  editor_.accept();
}

void Perturbation::insert_any(int max_count) {
  const auto count = static_cast<int>(editor_.random(static_cast<uint64_t>(max_count)));
  if (flat_.has_alternatives && editor_.random(2) == 0)
    put_off(static_cast<int32_t>(editor_.random(at(editor_.now().size()))));
  for (int i = 0; i < count; ++i) {
    const auto position = static_cast<int32_t>(1 + editor_.random(at(editor_.now().size())));
    const int32_t op = editor_.now().run(static_cast<int32_t>(editor_.random(at(position))));
    if (flat_.once[at(op)] != 0) continue;
    editor_.try_runs(editor_.edited({{.before = position, .op = op}}, {}));
    editor_.accept();
  }
}

size_t Perturbation::random_max_insertions() {
  return parameters_.max_insertions[editor_.random(parameters_.max_insertions.size())];
}

}  // namespace headroom::internal
