#include "headroom/plan/auto/search/pruning.h"

#include <algorithm>
#include <optional>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

void Pruning::run(int64_t target_bytes) {
  if (parameters_.drops_early_runs) drop_early_runs();
  if (parameters_.max_work_per_op == 0) return;
  const int64_t end = editor_.work() + parameters_.max_work_per_op * flat_.op_count;
  while (remove_once(target_bytes, end)) continue;
}

Pruning::Order Pruning::reruns() const {
  Order order;
  for (int32_t p = 0; p < now_.size(); ++p)
    if (editor_.is_rerun(p)) order.emplace_back(-flat_.time_ns[at(now_.run(p))], p);
  std::ranges::sort(order);
  return order;
}

/// Goes once over all reruns. Returns whether some were removed and work is left for another pass. Each try evaluates
/// the whole sequence, so as many runs are removed at a time as seem to fit together.
bool Pruning::remove_once(int64_t target_bytes, int64_t end) {
  bool is_changed = false;
  Order order = reruns();
  size_t max_removals = order.size();
  for (size_t next = 0; next < order.size();) {
    if (editor_.work() > end) return false;
    const size_t first = next;
    std::vector<Removal> removals = choose(order, next, max_removals, target_bytes);
    if (removals.empty()) continue;
    try_without(editor_, removals);
    if (editor_.trial().peak_bytes() > target_bytes) {
      if (removals.size() > 1) next = first;
      if (removals.front().replaced < 0) max_removals = std::max<size_t>(1, removals.size() / 4);
      continue;
    }
    editor_.accept();
    is_changed = true;
    std::ranges::sort(removals, {}, &Removal::position);
    for (size_t k = next; k < order.size(); ++k) {
      const auto later = std::ranges::partition_point(
          removals, [&](const Removal& removal) { return removal.position < order[k].second; });
      order[k].second -= static_cast<int32_t>(later - removals.begin());
    }
  }
  return is_changed;
}

/// Returns removals from `next` on that seem to fit together, and advances `next` past what was looked at. A removal
/// that replaces an earlier run is returned by itself.
std::vector<Removal> Pruning::choose(const Order& order, size_t& next, size_t max_removals, int64_t target_bytes) {
  std::vector<Removal> removals;
  for (; next < order.size() && removals.size() < max_removals; ++next) {
    editor_.add_work(1);
    const std::optional<Removal> removal = find_removal(flat_, now_, order[next].second, target_bytes);
    if (!removal || (!removals.empty() && !fits_with_chosen(*removal, target_bytes))) continue;
    if (removal->replaced >= 0 && !removals.empty()) break;
    removals.push_back(*removal);
    for (const int32_t w : flat_.outputs(removal->op)) is_removed_[at(w)] = 1;
    if (removal->replaced >= 0) {
      ++next;
      break;
    }
    if (removals.size() == 1) with_removals_.assign(now_.moments());
    if (removal->first < removal->position)
      with_removals_.add(at(removal->first), at(removal->position), removal->bytes);
  }
  for (const Removal& removal : removals)
    for (const int32_t w : flat_.outputs(removal.op)) is_removed_[at(w)] = 0;
  return removals;
}

/// Returns whether a run can be removed together with the chosen ones. It cannot if one of them writes the same value,
/// since the value would be kept from that run.
bool Pruning::fits_with_chosen(const Removal& removal, int64_t target_bytes) const {
  for (const int32_t w : flat_.outputs(removal.op))
    if (is_removed_[at(w)] != 0) return false;
  return removal.first >= removal.position ||
         with_removals_.most(at(removal.first), at(removal.position)) <= target_bytes - removal.bytes;
}

/// Removes first runs that nothing reads before the op runs again, as long as no other first run is in between. First
/// runs keep their order, and memory only decreases.
void Pruning::drop_early_runs() {
  std::vector<int32_t> early;
  int32_t next_first = now_.size();  // Position of the first run that follows.
  for (int32_t p = now_.size(); p-- > 0;) {
    if (editor_.is_rerun(p)) continue;
    const std::span<const int32_t> outputs = flat_.outputs(now_.run(p));
    const auto is_made_again = [&](int32_t w) {
      const std::span<const Timeline::Event> events = now_.events(w);
      return events.size() > 1 && events[1].is_write && events[1].position < next_first &&
             now_.run(events[1].position) == now_.run(p);
    };
    if (!outputs.empty() && std::ranges::all_of(outputs, is_made_again)) {
      early.push_back(p);
      next_first = now_.events(outputs.front())[1].position;
    } else {
      next_first = p;
    }
  }
  editor_.add_work(now_.size() / 8);
  if (early.empty()) return;
  std::ranges::reverse(early);
  editor_.assign(editor_.edited({}, early));
}

}  // namespace headroom::internal
