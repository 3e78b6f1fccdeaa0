#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/search/timeline.h"

namespace headroom::internal {

/// A run that is added right before a position.
struct Insertion {
  int32_t before;
  int32_t op;
};

/// The sequence of runs that a search changes, the changed sequence that it tries, and the work done so far.
///
/// Work is counted in events looked at, so that it is the same on every machine. First runs keep their order; reruns
/// are inserted and removed.
class RunEditor {
 public:
  explicit RunEditor(const FlatGraph& flat) : flat_(flat), now_(flat), trial_(flat) {}

  const FlatGraph& flat() const { return flat_; }
  const Timeline& now() const { return now_; }      ///< The current sequence.
  const Timeline& trial() const { return trial_; }  ///< The sequence of the last try_runs().

  void assign(const std::vector<int32_t>& runs);
  void assign(const Timeline& timeline);

  /// Returns the current runs with insertions, which are sorted by position, and without the runs at some positions,
  /// which are sorted too. The result is valid until the next call.
  std::vector<int32_t>& edited(const std::vector<Insertion>& insertions, const std::vector<int32_t>& erasures);

  /// Computes the trial sequence.
  void try_runs(const std::vector<int32_t>& runs);
  /// Makes the trial sequence the current one.
  void accept() { std::swap(now_, trial_); }

  /// Returns whether one of the outputs of the run at a position was written before.
  bool is_rerun(int32_t position) const;

  int64_t work() const { return work_; }
  void add_work(int64_t work) { work_ += work; }

  void seed(uint64_t seed) { random_state_ = seed; }
  /// Returns a pseudorandom number from 0 to n - 1; the same seed gives the same sequence.
  uint64_t random(uint64_t n);

 private:
  const FlatGraph& flat_;
  Timeline now_;
  Timeline trial_;
  std::vector<int32_t> edited_;
  uint64_t random_state_ = 1;
  int64_t work_ = 0;
};

}  // namespace headroom::internal
