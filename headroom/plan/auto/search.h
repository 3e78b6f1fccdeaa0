#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "headroom/algorithm/range_max.h"
#include "headroom/plan/auto/timeline.h"

namespace headroom::internal {

/// A plan as a sequence of runs, with its simulated peak in bytes and its time in nanoseconds.
struct JudgedRuns {
  std::vector<int32_t> runs;
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
};

/// Returns whether a plan is faster than another, or as fast with a smaller peak.
inline bool is_better(const JudgedRuns& one, const JudgedRuns& other) {
  return std::pair(one.time_ns, one.peak_bytes) < std::pair(other.time_ns, other.peak_bytes);
}

/// Returns the time that a descent may reach when its plan is to beat one of `time_ns`: 2 % more, because prune() then
/// removes runs.
inline int64_t slightly_more(int64_t time_ns) {
  int64_t sum_ns = 0;
  return __builtin_add_overflow(time_ns, time_ns / 50, &sum_ns) ? time_ns : sum_ns;
}

/// Parameters of random changes to a plan.
struct RandomChanges {
  static constexpr int kNoise = 60;       ///< Value of DescentOptions::noise for random changes, in percent.
  static constexpr int kMostRuined = 12;  ///< Maximum number of reruns that ruin() removes at a time.
  /// Values of DescentOptions::most_insertions. Which one is best differs between graphs, so each is used in turn.
  static constexpr std::array<size_t, 6> kMostInsertions = {1, 2, 4, 6, 12, 32};
};

struct DescentOptions {
  size_t most_insertions = 6;  ///< Maximum number of runs that one move may insert.
  int noise = 0;               ///< Random change of each candidate's gain per time, in percent of it either way.
  /// Also rematerialize a value just before one of its inputs dies, not only right before it is read.
  bool early = false;
  /// Time of the plan in nanoseconds above which descent gives up.
  int64_t most_ns = std::numeric_limits<int64_t>::max();
  int64_t most_work = 1'100;  ///< Maximum work, for each run of the plan.
  /// With `early`, also rematerialize a value at a random position between two uses.
  bool anywhere = false;
  /// Number of runs in the plan for each move that is applied at a time, as long as applying several moves reduces the
  /// excess.
  int32_t runs_per_move = 60;
};

/// Changes a sequence of runs step by step to reduce its peak or its time. First runs keep their order; reruns are
/// inserted and removed.
///
/// Work is counted in events looked at, so that it is the same on every machine.
class RunSearch {
 public:
  explicit RunSearch(const FlatGraph& flat);

  void assign(const std::vector<int32_t>& runs);
  const Timeline& timeline() const { return now_; }
  JudgedRuns judged() const { return {now_.runs(), now_.peak_bytes(), now_.time_ns()}; }
  int64_t work() const { return work_; }

  /// Recomputes values right before they are read, instead of keeping them, until the peak is at most `target_bytes`.
  /// Each step takes the move that removes the most excess (bytes above the target, summed over the moments) for its
  /// time. An input of a rerun is kept longer where that adds no excess; else its own next rerun is moved earlier, or
  /// it is recomputed too. Returns false where no move helps, leaving the sequence with the smallest excess seen, or
  /// where the time passes options.most_ns.
  bool descend(int64_t target_bytes, const DescentOptions& options);

  /// Removes runs that are not needed within `target_bytes`. The peak must be within the target.
  void prune(int64_t target_bytes);

  /// Stores the current sequence as the one that ruin() starts from.
  void remember();

  /// Restores the stored sequence and removes `count` reruns from it, whatever that does to the peak: neighbouring
  /// reruns, reruns of ops with equal costs, or any reruns, at random. Returns false where there are no reruns.
  bool ruin(int count);

  /// Inserts `count` runs of random ops that may run again, at random positions after their first runs, whatever that
  /// does to the peak. Sometimes it also replaces an op that may run only once by an alternative, and postpones the op
  /// to where its other outputs are read.
  void insert_any(int count);

  void seed(uint64_t seed) { random_state_ = seed; }
  /// Returns a pseudorandom number from 0 to n - 1; the same seed gives the same sequence.
  uint64_t random(uint64_t n);

 private:
  struct Insertion {
    int32_t before;
    int32_t op;
  };
  struct Move {
    double ratio = 0;
    double gain = 0;
    std::vector<Insertion> insertions;
    std::vector<int32_t> erasures;
    std::vector<int32_t> extended;  ///< Values that are kept longer because inserted runs read them.
    std::vector<int32_t> relied;    ///< Values that must be live where the inserted runs read them.
    int32_t value = -1;
  };

  struct Removal {
    int32_t position;
    int32_t replaced;  ///< Position of an earlier run that is replaced by one of `op`; -1 if there is none.
    int32_t op;
    int32_t first;  ///< First position from which `bytes` more are live, up to before `position`.
    int64_t bytes;  ///< Bytes that are kept instead of being rewritten by the run.
  };
  struct Candidate {
    double bound;
    double noise;
    int32_t value;
    int32_t position;
  };

  void set_target(int64_t target_bytes);
  double excess_freed(int32_t first, int32_t last, int64_t bytes) const;
  double excess_added(int32_t first, int32_t last, int64_t bytes, double most) const;
  int32_t last_needed(int32_t value, const Timeline::Copy& copy, int32_t before, int32_t op) const;
  bool evaluate(int32_t value, int32_t position, bool may_extend, double min_ratio, Move& move, bool& has_choice);
  bool evaluate_with(int32_t maker, int32_t value, int32_t position, bool may_extend, double min_ratio, Move& move,
                     bool& has_choice);
  int32_t maker_for(int32_t value, int32_t position, int32_t reader) const;
  double excess_of_insertions(const Move& move, double memory) const;
  double bound_ratio(int32_t value, int32_t first, int32_t position) const;
  int32_t last_chance(int32_t value, int32_t position) const;
  void add_candidate(int32_t value, int32_t first, int32_t position, int noise);
  void find_candidates(const DescentOptions& options);
  bool find_moves(size_t most);
  void apply_best(size_t most);
  void make_edited(const std::vector<Insertion>& insertions, const std::vector<int32_t>& erasures);
  void make_leaner();
  bool is_rerun(int32_t position) const;
  std::optional<Removal> find_removal(int32_t position, int64_t target_bytes) const;
  void drop_early_runs();
  void put_off(int32_t position);
  bool fits_with_others(const Removal& removal, int64_t target_bytes) const;
  void restart();
  void try_runs(const std::vector<int32_t>& runs);
  void try_without(std::span<const Removal> removals);
  static double excess_above(const Timeline& timeline, int64_t target_bytes);

  const FlatGraph& flat_;
  Timeline now_;
  Timeline trial_;  ///< A changed sequence, which replaces now_ if it is better.
  Timeline remembered_;
  std::vector<Removal> removals_;  ///< All possible removals from remembered_.
  bool has_removals_ = false;
  int64_t target_ = 0;
  size_t most_insertions_ = 0;
  std::vector<int32_t> over_count_;  ///< By position p: number of moments before p that are above the target.
  std::vector<double> over_sum_;     ///< By position p: bytes by which these moments exceed the target, in total.
  std::vector<Move> moves_;
  size_t move_count_ = 0;
  Move other_;
  Move alternative_;
  std::vector<Candidate> candidates_;
  double best_bound_ = 0;  ///< Largest bound of the candidates, without noise.
  /// Moves, as (value, position), that did not reduce the excess of the current sequence.
  std::vector<std::pair<int32_t, int32_t>> banned_;
  std::vector<int32_t> edited_;
  RangeMax with_removals_;           ///< By position: the moment in bytes if the runs chosen by prune() are removed.
  std::vector<uint8_t> is_removed_;  ///< By value: whether one of the runs chosen by prune() writes it.
  std::vector<uint8_t> evicted_;
  std::vector<uint8_t> relied_;
  std::vector<int32_t> open_;
  uint64_t random_state_ = 1;
  int64_t work_ = 0;
};

}  // namespace headroom::internal
