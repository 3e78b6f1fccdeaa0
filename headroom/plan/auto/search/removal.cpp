#include "headroom/plan/auto/search/removal.h"

#include <algorithm>
#include <vector>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

std::optional<Removal> find_removal(const FlatGraph& flat, const Timeline& timeline, int32_t position,
                                    int64_t target_bytes) {
  const int32_t op = timeline.run(position);
  Removal removal{.position = position, .replaced = -1, .op = op, .first = position, .bytes = 0};
  bool lacks_some = false;
  for (const int32_t w : flat.outputs(op)) {
    const std::span<const Timeline::Copy> copies = timeline.copies(w);
    const auto later =
        std::ranges::partition_point(copies, [&](const Timeline::Copy& copy) { return copy.born < position; });
    if (later != copies.begin()) removal.replaced = std::max(removal.replaced, std::prev(later)->born);
    if (later->last == position) continue;  // This copy is never read.
    removal.bytes += flat.bytes[at(w)];
    if (later == copies.begin()) {
      lacks_some = true;
      continue;
    }
    const int32_t freed = std::prev(later)->freed;
    removal.first = std::min(removal.first, freed + 1);
    if (freed >= position) continue;
    const std::span<const int32_t> taken_over = flat.overwrites(timeline.run(freed));
    if (std::ranges::find(taken_over, w) != taken_over.end()) removal.first = std::min(removal.first, freed);
  }
  if (!lacks_some) {
    removal.replaced = -1;
  } else {
    if (removal.replaced < 0 || flat.once[at(op)] != 0) return {};
    const int32_t other = timeline.run(removal.replaced);
    const auto is_made = [&](int32_t w) { return std::ranges::find(flat.outputs(op), w) != flat.outputs(op).end(); };
    if (!timeline.is_ready(op, removal.replaced) || !std::ranges::all_of(flat.outputs(other), is_made)) return {};
    removal.first = std::min(removal.first, removal.replaced);
  }
  if (timeline.most(removal.first, position - 1) > target_bytes - removal.bytes) return {};
  return removal;
}

void try_without(RunEditor& editor, std::span<const Removal> removals) {
  std::vector<int32_t> positions;
  for (const Removal& removal : removals) positions.push_back(removal.position);
  std::ranges::sort(positions);
  std::vector<int32_t>& runs = editor.edited({}, positions);
  for (const Removal& removal : removals)
    if (removal.replaced >= 0) runs[at(removal.replaced)] = removal.op;
  editor.try_runs(runs);
}

}  // namespace headroom::internal
