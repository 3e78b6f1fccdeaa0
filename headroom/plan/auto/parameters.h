#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {

/// Classes of graphs by the number of runs in the base order. What a search may spend on one run depends on them.
struct SizeParameters {
  /// Largest number of runs of a *tiny* graph. Its front has few plans, so each of them can become a level of its own.
  int64_t max_tiny_runs = 40;
  /// Largest number of runs of a *short* graph. Longer graphs have half as many levels and fewer starts for each, so
  /// that planning time stays about linear in the graph.
  int64_t max_short_runs = 200;
  /// Largest number of runs of a *medium* graph, whose levels get random starts and more rounds of polish. Above it, one
  /// level takes too long for that.
  int64_t max_medium_runs = 300;
  /// Number of runs above which a graph is *long*. Its levels descend from store-all only where no cut fits, and polish
  /// does less work for each run.
  int64_t min_long_runs = 1'000;
};

/// The targets for which plans are searched.
struct LevelParameters {
  /// Number of evenly spaced levels up to store-all's peak. Planning time grows with it, and plans for budgets between
  /// two levels are made from both.
  int count = 40;
  /// Number of bisection steps towards the smallest peak below the last level that has a plan. Each halves the gap to
  /// the largest target without a plan; after five steps it is about a thousandth of store-all's peak.
  int bisection_steps = 5;
  /// Number of targets between two levels of a short graph for which the front gets plans of its own. Longer graphs
  /// have one, and 0 turns them off for all graphs.
  int targets_between = 3;
};

/// Where the search for a level starts.
struct StartParameters {
  /// Whether store-all with faster producers of values that have several is a start.
  bool faster_producers = true;
  /// Maximum number of ops visited to find faster producers, which bounds the time on long chains.
  int64_t faster_producer_work = 10'000'000;
  /// Whether the plans in the two tables of `chain` are starts.
  bool chain_tables = true;
  /// Work to fill one table of `chain`; divided by the cube of the length it gives the number of slots. A table is then
  /// about as fine as `chain` makes it for one budget.
  double chain_table_work = 4e9;
  /// Work to follow one table of `chain`, in decisions; divided by the square of the length it limits the number of
  /// plans.
  int64_t chain_plan_work = 100'000'000;
  /// Whether all plans of `lower-sets` are starts on small graphs.
  bool lower_sets = true;
  /// Largest number of ops for which all plans of `lower-sets` are starts; up to there they take little time.
  int64_t max_lower_set_ops = 200;
  /// The same number at high effort.
  int64_t max_lower_set_ops_at_high_effort = 2'000;
  /// Whether the plans with the smallest peak of `division-tree`, and of `peak-cubic` and `peak-linear` on chains, are
  /// starts.
  bool smallest_peaks = true;
  /// Whether the cut of the memory bound is a start.
  bool cut = true;
  /// Whether store-all is a start.
  bool store_all = true;
  /// Whether the plan of the level above is a start.
  bool level_above = true;
  /// Number of runs that one move may insert from a start, at first. Most values need only a few ops to recompute.
  size_t few_insertions = 6;
  /// Number of runs that one move may insert in a second descent from the same start, for values that need long chains
  /// of ops to recompute; 0 for no second descent.
  size_t many_insertions = 16;
  /// Work of the descent from one start; divided by the number of runs it gives the work for each run, so
  /// that a descent takes about as long on every graph.
  int64_t descent_work = 700'000;
  /// Smallest work of a descent for each run. Long graphs need more work for a lower level too.
  int64_t min_descent_work_per_run = 1'500;
  /// Largest work of a descent for each run, which keeps a hopeless descent on a short graph short.
  int64_t max_descent_work_per_run = 4'000;
  /// Maximum number of descents with random choices at a level that no other start reaches; 0 for none.
  int max_random_starts = 40;
  /// Number of times the time of store-all that a plan may take after a descent from a start on a short graph. A
  /// plan that recomputes everything several times is not worth more work.
  int64_t max_slowdown = 8;
};

/// The descent to a target: which moves are evaluated, and when it gives up.
struct DescentParameters {
  /// Maximum work, for each run of the plan, of a descent from another plan.
  int64_t max_work_per_run = 1'100;
  /// Number of runs in the plan for each move that is applied at a time, as long as applying several moves at once
  /// reduces the excess. It trades planning time for the quality of single choices.
  int32_t runs_per_move = 60;
  /// The same number for polish and near the smallest budget, where each choice matters more.
  int32_t careful_runs_per_move = 100;
  /// Number of failed moves at one sequence after which descent gives up, since the moves that are left have lower
  /// bounds.
  size_t max_failed_moves = 12;
  /// Maximum number of candidates evaluated at one step. It bounds the steps at which hardly any candidate has a
  /// move.
  int max_evaluations = 500;
  /// Number of candidates evaluated at one step once a move has been found. Candidates are sorted by an upper bound on
  /// their gain per time, so later ones have less to offer.
  int max_evaluations_after_move = 50;
  /// Whether a move may keep an input of a rerun longer at the cost of some excess, instead of recomputing it too.
  bool extends_inputs = true;
  /// Whether a move may run an op's next rerun earlier instead of running the op once more.
  bool moves_reruns = true;
  /// Whether runs are moved, first runs too, before anything is recomputed. Set by the search for plans in any order.
  bool moves_runs = false;
  /// Time added to every move, in nanoseconds, so that ops of time 0 are compared by their bytes.
  double min_move_ns = 0.01;
};

/// Plans in any order: moves of first runs, and the search that uses them after the search that keeps the base order.
struct OrderParameters {
  /// Whether there is such a search at all.
  bool any_order = true;
  /// Number of runs in the plan for each move that is applied at a time.
  int32_t runs_per_move = 30;
  /// Maximum number of runs that one move takes along.
  size_t max_block = 8;
  /// Number of failed moves at one target after which moving ends.
  size_t max_failed_moves = 6;
  /// Maximum work of the moves for one target, for each run of the plan.
  int64_t max_work_per_run = 100;
  /// Whether orders of a list scheduler are starts.
  bool list_orders = true;
  /// Each step towards an order with a smaller peak asks for this fraction (1/64) of the peak less.
  int64_t peak_step_fraction = 64;
  /// Work to bring store-all to the levels in an order that needs clearly less memory, in percent of the work of polish.
  int64_t level_work_percent = 20;
  /// The first step towards a smaller peak is this fraction (1/1,000) of the smallest peak.
  int64_t small_step_fraction = 1'000;
  /// Work of these steps, in percent of the work of polish.
  int64_t small_step_work_percent = 15;
  /// Where another order of store-all saves at least this fraction (1/32) of its peak, steps of that fraction come first.
  int64_t large_step_fraction = 32;
  /// Work of these steps, in percent of the work of polish. Few graphs have them, and they find much smaller peaks.
  int64_t large_step_work_percent = 300;
  /// A step from which no plan is found is divided by this number, and one that finds a plan is doubled.
  int64_t step_divisor = 8;
  /// One attempt at a smaller peak may take this fraction (1/8) of the work of all steps.
  int64_t tries = 8;
  /// Number of rounds of polish with moves.
  int rounds = 1;
  /// Work of these rounds, in percent of the work of polish.
  int64_t polish_work_percent = 10;
};

/// Pruning: the removal of reruns that a plan does not need.
struct PruningParameters {
  /// Maximum work of one call, for each op of the graph; 0 turns the removal of reruns off. A plan for the smallest
  /// budget of a long chain may have a hundred times as many runs as the graph has ops, and would take very many
  /// passes.
  int64_t max_work_per_op = 2'000;
  /// Whether first runs are dropped where nothing reads their outputs before the op runs again.
  bool drops_early_runs = true;
};

/// Perturbation: random changes to a plan, after which descent and pruning make another plan.
struct PerturbationParameters {
  /// Maximum number of reruns that are removed at a time; 0 turns perturbation off. More would undo too much of
  /// the plan.
  int max_ruined = 12;
  /// Maximum numbers of runs that one move may insert in the descent that follows. Which one is best differs between
  /// graphs, so each is used in turn.
  std::array<size_t, 6> max_insertions = {1, 2, 4, 6, 12, 32};
  /// Random change of each candidate's gain per time in that descent, in percent of it either way. Without
  /// it a descent would mostly undo the perturbation.
  int noise_percent = 60;
  /// One in this many descents may also rematerialize a value early, just before one of the inputs of its op dies;
  /// 0 for none.
  uint64_t early_one_in = 3;
  /// Whether one in two of the descents that rematerialize early may also do so anywhere between two uses.
  bool anywhere = true;
  /// Whether reruns that are neighbours, or of ops with equal costs, are removed together, and not only any reruns.
  bool removes_related = true;
  /// Maximum number of runs of any ops that are inserted anywhere in a plan of a tiny graph; 0 for none. Longer graphs
  /// have too many places for a good one to be hit.
  int max_inserted = 4;
};

/// Polish: perturbation, descent and pruning at every level, in rounds.
struct PolishParameters {
  /// Whether a level's second plan, from another start, is polished beside the best one in the first round.
  bool second_plan = true;
  /// Whether the plans of the neighbouring levels are tried at a level too.
  bool neighbours = true;
  /// Work of polish at normal effort; divided by the number of runs it gives the work for each run, so that small
  /// graphs get more for each.
  int64_t work = 800'000;
  /// Smallest work for each run at normal effort on graphs that are not long.
  int64_t min_work_per_run = 2'000;
  /// Largest work for each run at normal effort, which bounds the time on tiny graphs.
  int64_t max_work_per_run = 8'000;
  /// Work for each run of long graphs at normal effort.
  int64_t long_work_per_run = 3'000;
  /// Work for each run at high effort, which is thereby about ten times as slow as normal effort.
  int64_t high_work_per_run = 100'000;
  /// Number of rounds on short and on long graphs. Plans move one level in each round.
  int rounds = 4;
  /// Number of rounds on graphs of up to SizeParameters::max_medium_runs that are not short. They have half as many
  /// levels, and a better plan takes longer to reach all of them.
  int medium_rounds = 8;
  /// Number of rounds on graphs between these and long ones.
  int rounds_above_medium = 3;
  /// A start on a graph that is not short, which was already polished as a plan of a folded graph, is searched no further
  /// where it is within this fraction (1/100) of the bound.
  int64_t polished_close_fraction = 100;
  /// Whether short graphs have one more level, just above the smallest peak, where a few more bytes save the most time.
  bool lowest_level = true;
  /// That level lies this fraction (1/50) of the smallest peak above the smallest peak.
  int64_t lowest_gap_fraction = 50;
  /// That level has work of its own: this fraction (1/6) of the work for each run, times the number of runs.
  int64_t lowest_work_fraction = 6;
  /// Number of rounds into which that work is divided.
  int lowest_rounds = 2;
};

/// Refinement of tiny graphs: every plan of the front becomes a level just below the peak of the next plan.
struct RefinementParameters {
  /// Maximum number of passes over the front; 0 turns refinement off.
  int max_passes = 12;
  /// Number of passes in a row without a faster plan after which refinement ends.
  int max_idle_passes = 3;
  /// Whether each pass first looks for plans of smaller peaks.
  bool lowers_peak = true;
  /// Number of plans with the smallest peaks from which those are searched.
  size_t lowered_plans = 3;
  /// The search for smaller peaks has this fraction (1/4) of the work of a whole round of polish.
  int64_t lowering_work_fraction = 4;
  /// Maximum number of runs of any ops that are inserted to look for a smaller peak.
  int max_inserted = 5;
};

/// Plans between two plans of the front, made for the budget that is asked for.
struct BetweenParameters {
  /// Maximum number of bisection steps on the way to one budget; 0 turns plans between two plans off. Thirty steps tell
  /// all budgets apart that differ by a billionth of the gap.
  int max_bisection_steps = 30;
};

/// Folding: planning the equal blocks of a deep network together.
struct FoldingParameters {
  /// Smallest number of ops of a graph that is folded. Below, planning the whole graph takes little time.
  int64_t min_ops = 1'000;
  /// Smallest number of equal blocks of a graph that is folded; 0 turns folding off.
  int32_t min_equal_blocks = 32;
  /// Number of equal blocks that stay in the folded graph. Fewer make the shares of blocks that do the same too coarse.
  int32_t kept_blocks = 12;
  /// Percent of blocks by which successive mixtures of two plans differ; 100 for no mixtures.
  int mixture_percent = 25;
};

/// The exact search on graphs that `exhaustive` takes.
struct ExactParameters {
  /// Maximum number of states of the first exact search, before the search for plans; 0 for none. It is quick and often
  /// proves all budgets.
  int64_t max_first_states = 10'000;
  /// Whether the exact search runs again after the search for plans, whose plans shorten it.
  bool after_search = true;
  /// Largest number of values for which the second search has all of PlanLimits::max_states for the times.
  int64_t max_values_in_full = 20;
  /// Maximum number of states of the second search for the times on larger graphs, below high effort. A search that
  /// reaches it takes about as long as everything else together.
  int64_t max_states_if_larger = 100'000;
};

/// All parameters of `auto`, by part. The defaults are what the planner uses. docs/results/planners.md has an ablation:
/// what each part buys in plan quality, and what it costs in time.
struct SearchParameters {
  SizeParameters size = {};
  LevelParameters level = {};
  StartParameters start = {};
  DescentParameters descent = {};
  OrderParameters order = {};
  PruningParameters pruning = {};
  PerturbationParameters perturbation = {};
  PolishParameters polish = {};
  RefinementParameters refinement = {};
  BetweenParameters between = {};
  FoldingParameters folding = {};
  ExactParameters exact = {};
  /// The lower bound on time whose cuts are starts.
  MemoryBoundParameters bound = {};
  /// Number of moments for which the bound is computed on graphs that are not short, where each takes longer.
  int max_cuts_if_not_short = 1;
};

}  // namespace headroom::internal
