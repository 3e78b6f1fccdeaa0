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

namespace headroom {

/// A plan as a sequence of runs, judged.
struct JudgedRuns {
  std::vector<int32_t> runs;
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
};

/// Returns whether a plan is faster than another, or as fast with a smaller peak.
inline bool is_better(const JudgedRuns& one, const JudgedRuns& other) {
  return std::pair(one.time_ns, one.peak_bytes) < std::pair(other.time_ns, other.peak_bytes);
}

/// Returns what a changed plan may take before prune(), where the plan that it is to beat takes `time_ns`.
inline int64_t slightly_more(int64_t time_ns) {
  int64_t sum_ns = 0;
  return __builtin_add_overflow(time_ns, time_ns / 50, &sum_ns) ? time_ns : sum_ns;
}

/// Parameters of random changes to a plan.
struct RandomChanges {
  static constexpr int kNoise = 60;       ///< DescentOptions::noise
  static constexpr int kMostRuined = 12;  ///< Reruns that ruin() takes away at a time.
  /// DescentOptions::most_insertions: which is best differs between graphs, so each has its turn.
  static constexpr std::array<size_t, 6> kMostInsertions = {1, 2, 4, 6, 12, 32};
};

struct DescentOptions {
  size_t most_insertions = 6;  ///< runs that one choice may add
  int noise = 0;               ///< percent by which choices are at random
  bool early = false;          ///< also make values again before what that takes goes, not only where they are read
  int64_t most_ns = std::numeric_limits<int64_t>::max();
  int64_t most_work = 1'100;   ///< for each run
  bool anywhere = false;       ///< with `early`: and at random places in between
  int32_t runs_per_move = 60;  ///< as many moves are made at a time as there are this many runs, as long as that helps
};

/// Changes a sequence of runs step by step towards less memory or less time. First runs stay where they are; other runs
/// come and go.
///
/// Work is counted in events looked at, so that it is the same on every machine.
class RunSearch {
 public:
  explicit RunSearch(const FlatGraph& flat);

  void assign(const std::vector<int32_t>& runs);
  const Timeline& timeline() const { return now_; }
  JudgedRuns judged() const { return {now_.runs(), now_.peak_bytes(), now_.time_ns()}; }
  int64_t work() const { return work_; }

  /// Computes values again, right before they are read, instead of keeping them, until the peak is at most
  /// `target_bytes`: at each step what takes the most memory above the target away for the time it costs. What a rerun
  /// reads is kept longer where there is room, else made earlier that is made again later anyway, else made again too.
  /// False where it gets no further, the sequence then having the least excess seen, or passes options.most_ns.
  bool descend(int64_t target_bytes, const DescentOptions& options);

  /// Takes runs away that are not needed within `target_bytes`, which the peak is within.
  void prune(int64_t target_bytes);

  /// The sequence that ruin() starts from.
  void remember();

  /// Takes `count` reruns away from what was remembered, whatever that does to the peak: neighbours, or of ops that cost
  /// the same, or any, at random. False where there are none.
  bool ruin(int count);

  /// Adds `count` runs of any ops that may run again, anywhere after their first runs, whatever that does to the peak;
  /// sometimes an alternative takes the place of one that may not, which then runs where it is needed.
  void insert_any(int count);

  void seed(uint64_t seed) { random_state_ = seed; }
  /// From 0 to n - 1, the same sequence for the same seed.
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
    std::vector<int32_t> extended;  ///< values that are kept longer for them
    std::vector<int32_t> relied;    ///< values that the inserted runs find alive
    int32_t value = -1;
  };

  struct Removal {
    int32_t position;
    int32_t replaced;  ///< an earlier run that becomes one of `op`; -1: none
    int32_t op;
    int32_t first;  ///< from here to before `position`
    int64_t bytes;  ///< so many more are kept
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
  bool evaluate(int32_t value, int32_t position, bool may_extend, double least_ratio, Move& move, bool& has_choice);
  bool evaluate_with(int32_t maker, int32_t value, int32_t position, bool may_extend, double least_ratio, Move& move,
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
  Timeline trial_;  ///< a change to it, which takes its place where it is good
  Timeline remembered_;
  std::vector<Removal> removals_;  ///< from it, all that can be
  bool has_removals_ = false;
  int64_t target_ = 0;
  size_t most_insertions_ = 0;
  std::vector<int32_t> over_count_;  ///< before a position: how many are above the target
  std::vector<double> over_sum_;     ///< and by how much in all
  std::vector<Move> moves_;
  size_t move_count_ = 0;
  Move other_;
  Move alternative_;
  std::vector<Candidate> candidates_;
  double best_bound_ = 0;                            ///< of them, without noise
  std::vector<std::pair<int32_t, int32_t>> banned_;  ///< (value, before) that did not help in the present sequence
  std::vector<int32_t> edited_;
  RangeMax with_removals_;           ///< by position: the moment, without the runs that prune() has chosen
  std::vector<uint8_t> is_removed_;  ///< by value: one of those runs makes it
  std::vector<uint8_t> evicted_;
  std::vector<uint8_t> relied_;
  std::vector<int32_t> open_;
  uint64_t random_state_ = 1;
  int64_t work_ = 0;
};

}  // namespace headroom
