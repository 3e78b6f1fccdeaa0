#include "headroom/plan/graph/lower_sets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "headroom/core/error.h"
#include "headroom/core/simulate.h"

namespace headroom::internal {
namespace {

/// Maximum number of bounds for which plans are made.
constexpr int kMaxBounds = 40;
/// Times are rounded to this fraction (1/2048) of the whole forward time, so that few different times keep the fronts
/// small.
constexpr int64_t kTimeSteps = 2048;
/// Number of moves looked at after which no more bounds are tried.
constexpr int64_t kMaxWork = 100'000'000;
/// Maximum number of moves looked at for one bound, for each state that the limits allow.
constexpr int64_t kMaxWorkPerState = 300;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

size_t at(int position) { return static_cast<size_t>(position); }

/// The cost of a move from one lower set to a larger one.
struct Move {
  int64_t need_bytes;  ///< Bytes needed besides those kept before.
  int64_t kept_bytes;  ///< Bytes kept from now on.
  int64_t time_ns;
};

class Moves {
 public:
  Moves(const ForwardGraph& forward, const LowerSets& sets) : forward_(forward), sets_(sets) {}

  /// Returns the cost of a move, or none unless `from` is a proper subset of `to` and the move needs at most
  /// `most_bytes`.
  std::optional<Move> find(int from, int to, int64_t most_bytes) const {
    const int64_t added_bytes = sets_.size_bytes[at(to)] - sets_.size_bytes[at(from)];
    Move move{2 * added_bytes + sets_.outside_bytes[at(to)], 0, 0};
    if (move.need_bytes > most_bytes || !is_subset(from, to)) return std::nullopt;
    if (to + 1 == sets_.count()) return move;
    move.time_ns = sets_.time_ns[at(to)] - sets_.time_ns[at(from)];
    for (const int v : sets_.boundary[at(to)]) {
      if (sets_.contains(from, v)) continue;
      const ForwardVertex& vertex = forward_.vertex(v);
      move.kept_bytes += vertex.kept_bytes;
      if (vertex.kept_bytes == vertex.size_bytes) move.time_ns -= vertex.time_ns;
    }
    return move;
  }

 private:
  bool is_subset(int a, int b) const {
    const uint64_t* const in_a = &sets_.bits[at(a) * sets_.words];
    const uint64_t* const in_b = &sets_.bits[at(b) * sets_.words];
    for (size_t w = 0; w < sets_.words; ++w) {
      if ((in_a[w] & ~in_b[w]) != 0) return false;
    }
    return true;
  }

  const ForwardGraph& forward_;
  const LowerSets& sets_;
};

/// For each set, the sequence to it within a bound that keeps the fewest bytes, whatever its time.
struct LeastKept {
  struct State {
    int64_t kept_bytes = kNever;  ///< Bytes kept; kNever if there is no sequence.
    int64_t time_ns = 0;
    int from = -1;
  };
  std::vector<State> states;
};

/// Returns for each set the sequence that keeps the fewest bytes. Takes O(sets^2 * (words + boundary)).
LeastKept least_kept(const Moves& moves, int count, int64_t bound_bytes) {
  LeastKept result;
  result.states.resize(at(count));
  result.states[0].kept_bytes = 0;
  for (int to = 1; to < count; ++to) {
    LeastKept::State& state = result.states[at(to)];
    for (int from = 0; from < to; ++from) {
      const LeastKept::State& before = result.states[at(from)];
      if (before.kept_bytes > bound_bytes) continue;
      const std::optional<Move> move = moves.find(from, to, bound_bytes - before.kept_bytes);
      if (!move) continue;
      const LeastKept::State next{before.kept_bytes + move->kept_bytes, before.time_ns + move->time_ns, from};
      if (std::tie(next.kept_bytes, next.time_ns) < std::tie(state.kept_bytes, state.time_ns)) state = next;
    }
  }
  return result;
}

std::optional<LowerSetSequence> sequence_of(const LeastKept& least) {
  const LeastKept::State& end = least.states.back();
  if (end.kept_bytes == kNever) return std::nullopt;
  LowerSetSequence sequence{{}, end.time_ns, end.kept_bytes};
  for (int set = static_cast<int>(least.states.size()) - 1; set > 0; set = least.states[at(set)].from) {
    sequence.sets.push_back(set);
  }
  std::ranges::reverse(sequence.sets);
  return sequence;
}

/// Bounds on the sequences from each set to the end.
class Rest {
 public:
  /// Computes the bounds. Takes O(sets^2 * (words + boundary + levels)).
  Rest(const Moves& moves, const LeastKept& least, int64_t bound_bytes)
      : levels_(level_count(std::ssize(least.states))),
        width_bytes_(bound_bytes / levels_ + 1),
        most_kept_bytes_(least.states.size(), -1),
        least_ns_(least.states.size() * static_cast<size_t>(levels_), kFar) {
    const int count = static_cast<int>(least.states.size());
    most_kept_bytes_.back() = bound_bytes;
    std::fill(least_ns_.end() - levels_, least_ns_.end(), 0);
    for (int from = count - 1; from-- > 0;) {
      const int64_t kept_bytes = least.states[at(from)].kept_bytes;
      if (kept_bytes > bound_bytes) continue;
      int64_t& most_here = most_kept_bytes_[at(from)];
      for (int to = from + 1; to < count; ++to) {
        if (most_kept_bytes_[at(to)] < 0) continue;
        const std::optional<Move> move = moves.find(from, to, bound_bytes - kept_bytes);
        if (!move) continue;
        const int64_t most = std::min(bound_bytes - move->need_bytes, most_kept_bytes_[at(to)] - move->kept_bytes);
        if (most < kept_bytes) continue;
        most_here = std::max(most_here, most);
        // A sequence that keeps at least `level` widths at this set keeps at least `level + shift` at the next one.
        const int64_t shift = move->kept_bytes / width_bytes_;
        const int64_t levels = most / width_bytes_ + 1;
        int64_t* const here = &least_ns_[entry(from, 0)];
        const int64_t* const there = &least_ns_[entry(to, shift)];
        for (int64_t level = 0; level < levels; ++level)
          here[level] = std::min(here[level], move->time_ns + there[level]);
      }
    }
  }

  /// Returns the bytes kept at a set above which the end cannot be reached within the bound; -1 if it cannot be reached
  /// at all.
  int64_t most_kept_bytes(int set) const { return most_kept_bytes_[at(set)]; }
  /// Returns a lower bound on the time from a set to the end, which grows with the bytes kept.
  int64_t least_ns(int set, int64_t kept_bytes) const { return least_ns_[entry(set, kept_bytes / width_bytes_)]; }

 private:
  static constexpr int64_t kFar = kNever / 4;

  /// Returns the number of levels of kept bytes. More levels give better bounds; there are fewer if there are many
  /// sets.
  static int64_t level_count(int64_t sets) { return std::clamp<int64_t>((int64_t{1} << 28) / (sets * sets), 64, 1024); }
  size_t entry(int set, int64_t level) const {
    return at(set) * static_cast<size_t>(levels_) + static_cast<size_t>(level);
  }

  int64_t levels_;
  int64_t width_bytes_;
  std::vector<int64_t> most_kept_bytes_;  // By set.
  std::vector<int64_t> least_ns_;         // By set and level of kept bytes.
};

/// Pairs of time and kept bytes of which none dominates another.
class Front {
 public:
  bool has(int64_t time_ns, int64_t kept_bytes) const {
    const auto found = kept_by_time_.find(time_ns);
    return found != kept_by_time_.end() && found->second == kept_bytes;
  }

  /// Adds a pair and returns true, or returns false where another pair dominates it.
  bool add(int64_t time_ns, int64_t kept_bytes) {
    auto after = kept_by_time_.upper_bound(time_ns);
    if (after != kept_by_time_.begin() && std::prev(after)->second <= kept_bytes) return false;
    while (after != kept_by_time_.end() && after->second >= kept_bytes) after = kept_by_time_.erase(after);
    kept_by_time_[time_ns] = kept_bytes;
    return true;
  }

 private:
  std::map<int64_t, int64_t> kept_by_time_;  // Kept bytes by time; they decrease as the time increases.
};

Segments segments_of(const ForwardGraph& forward, const LowerSets& sets, const LowerSetSequence& sequence) {
  Segments segments;
  segments.segment.resize(at(forward.size()));
  segments.keep.assign(at(forward.size()), 0);
  segments.last = static_cast<int>(sequence.sets.size()) - 1;
  int previous = 0;
  for (size_t i = 0; i < sequence.sets.size(); ++i) {
    const int set = sequence.sets[i];
    for (int v = 0; v < forward.size(); ++v) {
      if (sets.contains(set, v) && !sets.contains(previous, v)) segments.segment[at(v)] = static_cast<int>(i);
    }
    for (const int v : sets.boundary[at(set)]) segments.keep[at(v)] = 1;
    previous = set;
  }
  return segments;
}

/// Returns the smallest bound that has a sequence, or a bound up to 1/4096 above it. `high` must have a sequence.
int64_t least_bound(const Moves& moves, int count, int64_t high) {
  int64_t low = -1;
  while (high - low > 1 + high / 4096) {
    const int64_t middle = std::midpoint(low, high);
    const bool found = least_kept(moves, count, middle).states.back().kept_bytes != kNever;
    (found ? high : low) = middle;
  }
  return high;
}

struct SampledPlan {
  Schedule schedule;
  int64_t peak_bytes;  ///< Simulated.
  int64_t time_ns;     ///< Simulated.
};

/// Makes plans for bounds and stores them in the order in which they are made.
class Sampler {
 public:
  Sampler(const Graph& graph, const PlanLimits& limits, const LowerSetOptions& options)
      : graph_(graph),
        limits_(limits),
        forward_(with_coarse_times(forward_graph(graph, "lower-sets"))),
        sets_(lower_sets(forward_, options.exact, most_sets(limits))) {}

  std::vector<SampledPlan> sample_all() {
    add({{sets_.count() - 1}, 0, 0});
    const int64_t most = 2 * sets_.size_bytes.back();
    const int64_t least = least_bound(Moves(forward_, sets_), sets_.count(), most);
    sample(least);
    if (least < most && !limit_reached_) sample(most);
    // The next bound lies halfway between the two neighbouring bounds whose plans differ most in peak and time.
    while (samples_.size() < kMaxBounds && samples_.size() > 1 && work_ < kMaxWork && !limit_reached_) {
      const auto open = [&](size_t i) {
        const Sample& low = samples_[i];
        const Sample& high = samples_[i + 1];
        if (high.bound_bytes - low.bound_bytes < 2) return 0.0;
        return static_cast<double>(std::abs(high.peak_bytes - low.peak_bytes)) *
               static_cast<double>(low.time_ns - high.time_ns);
      };
      std::ranges::sort(samples_, {}, &Sample::bound_bytes);
      size_t widest = 0;
      for (size_t i = 1; i + 1 < samples_.size(); ++i) {
        if (open(i) > open(widest)) widest = i;
      }
      if (open(widest) == 0.0) break;
      const auto& [bound_bytes, time_ns, peak_bytes] = samples_[widest];
      sample(std::midpoint(bound_bytes, samples_[widest + 1].bound_bytes), time_ns);
    }
    return std::move(plans_);
  }
  bool limit_reached() const { return limit_reached_; }

 private:
  struct Sample {
    int64_t bound_bytes;
    int64_t time_ns;     // Time of the sequence.
    int64_t peak_bytes;  // Simulated peak.
  };

  static ForwardGraph with_coarse_times(ForwardGraph forward) {
    int64_t whole_ns = 0;
    for (const ForwardVertex& vertex : forward.vertices) whole_ns += vertex.time_ns;
    const int64_t step_ns = std::max<int64_t>(1, whole_ns / kTimeSteps);
    for (ForwardVertex& vertex : forward.vertices) {
      vertex.time_ns = vertex.time_ns / step_ns + (vertex.time_ns % step_ns > step_ns / 2 ? 1 : 0);
    }
    return forward;
  }

  static int64_t most_sets(const PlanLimits& limits) {
    return static_cast<int64_t>(10 * std::sqrt(static_cast<double>(std::max<int64_t>(limits.max_states, 1))));
  }

  /// Makes the plans for a bound. `known_ns` is the time for a smaller bound.
  void sample(int64_t bound_bytes, int64_t known_ns = kNever) {
    const LeastKept least = least_kept(Moves(forward_, sets_), sets_.count(), bound_bytes);
    if (const auto sequence = sequence_of(least)) add(*sequence);
    const LowerSetSearch search = least_time_sequence(forward_, sets_, bound_bytes, limits_.max_states, known_ns);
    work_ += int64_t{sets_.count()} * sets_.count() + search.work;
    limit_reached_ = search.limit_reached;
    if (!search.sequence) {
      HEADROOM_ASSERT(limit_reached_);
      return;
    }
    samples_.push_back({bound_bytes, search.sequence->time_ns, add(*search.sequence)});
  }

  /// Adds the plan of a sequence and returns its simulated peak in bytes.
  int64_t add(const LowerSetSequence& sequence) {
    Schedule schedule = segment_schedule(graph_, forward_, segments_of(forward_, sets_, sequence));
    const Simulation simulation = simulate(graph_, schedule);
    HEADROOM_ASSERT(!simulation.error);
    plans_.push_back({std::move(schedule), simulation.peak_bytes, simulation.time_ns});
    return simulation.peak_bytes;
  }

  const Graph& graph_;
  PlanLimits limits_;
  ForwardGraph forward_;
  LowerSets sets_;
  std::vector<Sample> samples_;
  std::vector<SampledPlan> plans_;
  bool limit_reached_ = false;
  int64_t work_ = 0;
};

}  // namespace

LowerSetSearch least_time_sequence(const ForwardGraph& forward, const LowerSets& sets, int64_t bound_bytes,
                                   int64_t max_states, int64_t most_ns) {
  // A state is a way to a set. States are taken in order of their time plus the lower bound on the rest, so the first
  // one at the end is the fastest.
  struct State {
    int64_t least_ns;  // Lower bound on the time of the whole sequence.
    int64_t kept_bytes;
    int set;
    int from;  // Position in `taken` of the state before it.
    int64_t time_ns;
    bool operator>(const State& other) const {
      return std::tie(least_ns, kept_bytes, set, from) >
             std::tie(other.least_ns, other.kept_bytes, other.set, other.from);
    }
  };
  const Moves moves(forward, sets);
  const int count = sets.count();
  const int64_t pairs = int64_t{count} * count;
  LowerSetSearch result;
  const LeastKept least = least_kept(moves, count, bound_bytes);
  if (least.states.back().kept_bytes == kNever) return result;
  const Rest rest(moves, least, bound_bytes);
  result.work = pairs;
  // A way to the end is known, so slower ones are left out.
  most_ns = std::min(most_ns, least.states.back().time_ns);

  std::vector<State> taken;
  std::vector<Front> fronts(at(count));
  std::priority_queue<State, std::vector<State>, std::greater<>> waiting;
  waiting.push({rest.least_ns(0, 0), 0, 0, -1, 0});
  fronts[0].add(0, 0);
  std::optional<State> best;
  while (!waiting.empty()) {
    const State state = waiting.top();
    waiting.pop();
    if (best && state.least_ns > best->least_ns) break;
    if (!fronts[at(state.set)].has(state.time_ns, state.kept_bytes)) continue;
    if (state.set == count - 1) {
      if (!best || state.kept_bytes < best->kept_bytes) best = state;
      continue;
    }
    const int index = static_cast<int>(taken.size());
    taken.push_back(state);
    for (int to = state.set + 1; to < count; ++to) {
      if (rest.most_kept_bytes(to) < 0) continue;
      const std::optional<Move> move = moves.find(state.set, to, bound_bytes - state.kept_bytes);
      if (!move) continue;
      const int64_t kept_bytes = state.kept_bytes + move->kept_bytes;
      if (kept_bytes > rest.most_kept_bytes(to)) continue;
      const int64_t time_ns = state.time_ns + move->time_ns;
      const int64_t least_ns = time_ns + rest.least_ns(to, kept_bytes);
      if (least_ns > most_ns || !fronts[at(to)].add(time_ns, kept_bytes)) continue;
      waiting.push({least_ns, kept_bytes, to, index, time_ns});
    }
    result.work += count;
    const bool too_many = static_cast<int64_t>(taken.size() + waiting.size()) > max_states;
    if (too_many || (result.work - pairs) / kMaxWorkPerState > max_states) {
      result.limit_reached = true;
      return result;
    }
  }
  if (!best) return result;
  LowerSetSequence sequence{{}, best->time_ns, best->kept_bytes};
  for (State state = *best; state.set > 0; state = taken[at(state.from)]) sequence.sets.push_back(state.set);
  std::ranges::reverse(sequence.sets);
  result.sequence = std::move(sequence);
  return result;
}

PlanResult plan_lower_sets(const Graph& graph, const PlanRequest& request, const LowerSetOptions& options) {
  Sampler sampler(graph, request.limits, options);
  std::vector<SampledPlan> plans = sampler.sample_all();
  PlanResult result;
  result.smallest_budget_bytes = std::ranges::min_element(plans, {}, &SampledPlan::peak_bytes)->peak_bytes;
  if (request.budget_bytes)
    std::erase_if(plans, [&](const SampledPlan& plan) { return plan.peak_bytes > *request.budget_bytes; });
  const auto rank = [&](const SampledPlan& plan) {
    return request.budget_bytes ? std::pair(plan.time_ns, plan.peak_bytes) : std::pair(plan.peak_bytes, plan.time_ns);
  };
  const auto best = std::ranges::min_element(plans, {}, rank);
  if (best != plans.end()) {
    result.schedule = std::move(best->schedule);
    result.status = PlanStatus::kFeasible;
  }
  if (sampler.limit_reached()) result.status = PlanStatus::kTimeout;
  return result;
}

std::vector<Schedule> lower_set_plans(const Graph& graph, const PlanLimits& limits) {
  std::vector<Schedule> schedules;
  for (SampledPlan& plan : Sampler(graph, limits, {}).sample_all()) schedules.push_back(std::move(plan.schedule));
  return schedules;
}

}  // namespace headroom::internal
