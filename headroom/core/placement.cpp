#include "headroom/core/placement.h"

#include <algorithm>
#include <map>
#include <utility>

#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"

namespace headroom {
using namespace internal;
namespace {

/// A copy of a value in memory.
struct Copy {
  ValueId value{};
  bool is_current = true;    ///< Whether it has not been dropped, replaced or overwritten.
  std::vector<size_t> held;  ///< Numbers of the copies that it holds.
  size_t entry = 0;          ///< The entry with its address; kNoEntry where it has none.
};

constexpr size_t kNoEntry = static_cast<size_t>(-1);

/// What an entry is for: a step and a value, or no value for a workspace.
using Key = std::pair<size_t, std::optional<ValueId>>;

/// Goes through a schedule with the addresses of a placement.
class PlacementCheck {
 public:
  PlacementCheck(const Graph& graph, const Schedule& schedule, const Placement& placement)
      : graph_(graph), schedule_(schedule), placement_(placement), bytes_(placement.offsets.size(), 0) {}

  std::optional<std::string> find_error() {
    if (const auto error = verify(graph_, schedule_))
      return "the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message;
    if (placement_.alignment < 1) return "alignment must be at least 1, found " + std::to_string(placement_.alignment);
    if (!index_entries()) return error_;
    for (size_t i = 0; i < schedule_.steps.size() && error_.empty(); ++i) {
      if (schedule_.steps[i].is_run())
        run(i);
      else
        end_current(schedule_.steps[i].value());
      free_copies();
    }
    return error_.empty() ? std::nullopt : std::optional(error_);
  }

 private:
  std::string name_of(const Key& key) const {
    const std::string what = key.second ? quote(graph_.value(*key.second).name) : std::string("the workspace");
    return what + " of step " + std::to_string(key.first);
  }
  std::string name_of(size_t entry) const {
    const PlacedBuffer& buffer = placement_.offsets[entry];
    return "offsets[" + std::to_string(entry) + "] (" + name_of(Key{buffer.step, buffer.value}) + ")";
  }
  std::string range_of(size_t entry) const {
    return name_of(entry) + " with " + std::to_string(bytes_[entry]) + " bytes at " +
           std::to_string(placement_.offsets[entry].offset);
  }

  /// Finds the bytes of every entry. Returns false where two are for the same buffer, or one is for none.
  bool index_entries() {
    for (size_t e = 0; e < placement_.offsets.size(); ++e) {
      const PlacedBuffer& buffer = placement_.offsets[e];
      if (const std::string reason = reason_against(buffer); !reason.empty()) {
        const bool is_known = !buffer.value || index(*buffer.value) < graph_.values().size();
        error_ = (is_known ? name_of(e) : "offsets[" + std::to_string(e) + "]") + ": " + reason;
        return false;
      }
      const auto [other, is_new] = entries_.try_emplace(Key{buffer.step, buffer.value}, e);
      if (!is_new) {
        error_ = name_of(other->second) + " and " + name_of(e) + " are for the same buffer";
        return false;
      }
      const Op& op = graph_.op(schedule_.steps[buffer.step].op());
      bytes_[e] = buffer.value ? graph_.value(*buffer.value).bytes : op.workspace_bytes;
    }
    return true;
  }

  /// Returns why the schedule has no buffer for an entry, or an empty text.
  std::string reason_against(const PlacedBuffer& buffer) const {
    if (buffer.step >= schedule_.steps.size())
      return "the schedule has " + std::to_string(schedule_.steps.size()) + " steps";
    const Step& step = schedule_.steps[buffer.step];
    if (!step.is_run()) return "the step is not a run";
    const Op& op = graph_.op(step.op());
    if (!buffer.value) return op.workspace_bytes > 0 ? "" : quote(op.name) + " has no workspace above 0";
    if (index(*buffer.value) >= graph_.values().size()) return "the graph has no such value";
    const auto output = std::ranges::find(op.outputs, *buffer.value);
    if (output == op.outputs.end()) return quote(op.name) + " does not write this value";
    if (graph_.value(*buffer.value).bytes == 0) return "a value of 0 bytes has no address";
    if (step.is_over() && output == op.outputs.begin())
      return quote(op.name) + " runs in place, so its first output has the address of " +
             quote(graph_.value(step.value()).name);
    return "";
  }

  void run(size_t i) {
    const Step& step = schedule_.steps[i];
    const Op& op = graph_.op(step.op());
    const size_t first_new = copies_.size();
    std::vector<size_t> replaced;
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      const ValueId id = op.outputs[k];
      Copy copy;
      copy.value = id;
      if (step.is_over() && k == 0)
        copy.entry = take_over(step.value());
      else
        copy.entry = graph_.value(id).bytes == 0 ? kNoEntry : allocate(i, id);
      if (const auto old = current_.find(id); old != current_.end()) replaced.push_back(old->second);
      live_.push_back(copies_.size());
      copies_.push_back(std::move(copy));
    }
    if (op.workspace_bytes > 0) {
      const size_t workspace = allocate(i, std::nullopt);
      release(workspace);
    }
    // A copy holds the copies that its run read or wrote: of what the run writes the new ones.
    for (size_t c = first_new; c < copies_.size(); ++c) current_[copies_[c].value] = c;
    for (size_t c = first_new; c < copies_.size(); ++c)
      for (const ValueId held : graph_.value(copies_[c].value).holds)
        if (const auto copy = current_.find(held); copy != current_.end()) copies_[c].held.push_back(copy->second);
    for (const size_t copy : replaced) copies_[copy].is_current = false;
    if (step.is_over()) end_current(step.value());
  }

  /// Returns the entry of the copy that a run in place overwrites. Its address now belongs to the run's first output.
  size_t take_over(ValueId overwritten) { return std::exchange(copies_[current_.at(overwritten)].entry, kNoEntry); }

  void end_current(ValueId id) {
    copies_[current_.at(id)].is_current = false;
    current_.erase(id);
  }

  /// Puts a buffer into the arena. Returns its entry.
  size_t allocate(size_t step, std::optional<ValueId> value) {
    if (!error_.empty()) return kNoEntry;
    const auto found = entries_.find(Key{step, value});
    if (found == entries_.end()) {
      error_ = "no entry for " + name_of(Key{step, value});
      return kNoEntry;
    }
    const size_t entry = found->second;
    const int64_t offset = placement_.offsets[entry].offset;
    if (offset < 0 || offset % placement_.alignment != 0) {
      error_ = range_of(entry) + ": the offset must be a multiple of " + std::to_string(placement_.alignment);
    } else if (bytes_[entry] > placement_.arena_bytes || offset > placement_.arena_bytes - bytes_[entry]) {
      error_ = range_of(entry) + " ends above the arena of " + std::to_string(placement_.arena_bytes) + " bytes";
    } else {
      const auto above = occupied_.lower_bound(offset);
      if (above != occupied_.end() && above->first < offset + bytes_[entry]) complain(above->second, entry, step);
      if (above != occupied_.begin()) {
        const auto below = std::prev(above);
        if (below->first + bytes_[below->second] > offset) complain(below->second, entry, step);
      }
      if (error_.empty()) occupied_[offset] = entry;
    }
    return entry;
  }

  void complain(size_t one, size_t other, size_t step) {
    error_ = range_of(one) + " and " + range_of(other) + " overlap in step " + std::to_string(step);
  }

  void release(size_t entry) {
    if (entry != kNoEntry && error_.empty()) occupied_.erase(placement_.offsets[entry].offset);
  }

  /// Frees the copies that no longer count: those that neither are current nor are held, directly or through others, by
  /// one that is.
  void free_copies() {
    std::vector<size_t> open;
    std::vector<uint8_t> counts(copies_.size(), 0);
    for (const size_t copy : live_)
      if (copies_[copy].is_current) open.push_back(copy);
    while (!open.empty()) {
      const size_t copy = open.back();
      open.pop_back();
      if (std::exchange(counts[copy], uint8_t{1}) != 0) continue;
      open.insert(open.end(), copies_[copy].held.begin(), copies_[copy].held.end());
    }
    for (const size_t copy : live_)
      if (counts[copy] == 0) release(copies_[copy].entry);
    std::erase_if(live_, [&](size_t copy) { return counts[copy] == 0; });
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const Placement& placement_;
  std::map<Key, size_t> entries_;
  std::vector<int64_t> bytes_;  ///< By entry.
  std::vector<Copy> copies_;
  std::vector<size_t> live_;            ///< Numbers of the copies that count.
  std::map<ValueId, size_t> current_;   ///< The number of the current copy of each value.
  std::map<int64_t, size_t> occupied_;  ///< By offset: the entry that is in the arena there.
  std::string error_;
};

}  // namespace

std::optional<std::string> verify_placement(const Graph& graph, const Schedule& schedule, const Placement& placement) {
  return PlacementCheck(graph, schedule, placement).find_error();
}

}  // namespace headroom
