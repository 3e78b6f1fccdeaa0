#include "headroom/plan/bounds/memory_bound.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "headroom/algorithm/max_flow.h"
#include "headroom/core/error.h"
#include "headroom/core/schedule.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

/// Groups of alternatives and which of them must run before which; see time_bound.h.
class Dependences {
 public:
  explicit Dependences(const Graph& graph) : graph_(graph), groups_(find_needed_groups(graph)) {
    before_.resize(groups_.ops.size());
    after_.resize(groups_.ops.size());
    for (size_t g = 0; g < groups_.ops.size(); ++g) {
      for (const ValueId id : common_inputs(groups_.ops[g])) {
        if (graph.value(id).resident) continue;
        const int maker = group_of(id);
        before_[g].push_back(maker);
        after_[at(maker)].push_back(static_cast<int>(g));
      }
    }
  }

  const NeededGroups& groups() const { return groups_; }
  int group_of(ValueId id) const { return groups_.group_of_op[index(graph_.producers(id).front())]; }
  std::vector<uint8_t> ancestors(int group) const { return reached(before_, group); }
  std::vector<uint8_t> descendants(int group) const { return reached(after_, group); }

  /// Returns the values that all of some ops read.
  std::vector<ValueId> common_inputs(std::span<const OpId> ops) const {
    std::vector<ValueId> ids = graph_.op(ops.front()).inputs;
    std::erase_if(ids, [&](ValueId id) {
      return !std::ranges::all_of(ops, [&](OpId op) { return contains(graph_.op(op).inputs, id); });
    });
    return ids;
  }

 private:
  /// Returns the groups that can be reached from a group along edges, without the group itself.
  static std::vector<uint8_t> reached(const std::vector<std::vector<int>>& edges, int group) {
    std::vector<uint8_t> seen(edges.size(), 0);
    std::vector<int> open{group};
    while (!open.empty()) {
      const int g = open.back();
      open.pop_back();
      for (const int next : edges[at(g)]) {
        if (seen[at(next)] == 0) open.push_back(next);
        seen[at(next)] = 1;
      }
    }
    return seen;
  }

  const Graph& graph_;
  NeededGroups groups_;
  std::vector<std::vector<int>> before_;
  std::vector<std::vector<int>> after_;
};

/// The moment of a group's first run.
struct Moment {
  int group = 0;
  int64_t own_bytes = 0;  ///< Lower bound on the bytes of the op's inputs, outputs, workspace and the resident values.
  int64_t wanted_bytes = 0;     ///< Bytes of `wanted`.
  std::vector<ValueId> wanted;  ///< Values produced before and needed after, without the op's own.
  std::vector<uint8_t> is_own;  ///< By value: whether it is an input or an output of the op.
};

}  // namespace

class MemoryBounds::Moments {
 public:
  Moments(const Graph& graph, const MemoryBoundParameters& parameters)
      : graph_(graph),
        dependences_(graph),
        least_ns_(time_lower_bound_ns(graph)),
        max_prices_(parameters.max_prices),
        moments_(find_moments(parameters)) {
    for (const Op& op : graph.ops()) total_ns_ += op.time_ns;
    for (const Value& value : graph.values()) total_bytes_ += value.bytes;
  }

  MemoryBound bound(int64_t budget_bytes, int max_cuts) const {
    MemoryBound bound{.time_ns = least_ns_, .is_feasible = true, .moment = {}, .kept = {}};
    Extra extra;
    int tried = 0;
    for (const Moment& moment : moments_) {
      const int64_t room_bytes = budget_bytes - moment.own_bytes;
      if (moment.wanted_bytes <= room_bytes || tried++ == max_cuts) break;
      Line way{};
      const std::optional<Extra> found = find_extra(moment, room_bytes, way);
      if (!found) return {.time_ns = bound.time_ns, .is_feasible = false, .moment = {}, .kept = {}};
      if (!found->exceeds(extra)) continue;
      extra = *found;
      bound.moment = dependences_.groups().ops[at(moment.group)];
      bound.kept = std::move(way.kept);
    }
    // Schedules take whole nanoseconds, so a fraction is rounded up.
    const FlowAmount extra_ns = extra.whole_ns + (extra.fraction > 0 ? 1 : 0);
    if (extra_ns < (FlowAmount{1} << 62U) - bound.time_ns) bound.time_ns += static_cast<int64_t>(extra_ns);
    return bound;
  }

 private:
  /// A price of byte_weight / time_weight nanoseconds per byte, as integers. A way to fit a moment into the budget
  /// costs time_weight * (time of recomputation) + byte_weight * (bytes kept).
  struct Price {
    FlowAmount time_weight;
    FlowAmount byte_weight;
    FlowAmount cost(FlowAmount time_ns, FlowAmount bytes) const { return time_weight * time_ns + byte_weight * bytes; }
  };

  /// A way to fit a moment into the budget that is the cheapest at some price.
  struct Line {
    int64_t time_ns = 0;
    int64_t bytes = 0;    ///< Bytes kept.
    FlowAmount cost = 0;  ///< Value of the flow: no way costs less at that price.
    std::vector<ValueId> kept = {};
  };

  /// A lower bound on the extra time that fitting a moment into the budget takes. The fraction orders moments that are
  /// equal in whole nanoseconds; the bound only asks whether it is positive.
  struct Extra {
    FlowAmount whole_ns = 0;
    double fraction = 0;
    bool exceeds(const Extra& other) const {
      return whole_ns != other.whole_ns ? whole_ns > other.whole_ns : fraction > other.fraction;
    }
  };

  /// Returns the moments to look at, those with the most bytes first.
  std::vector<Moment> find_moments(const MemoryBoundParameters& parameters) const {
    std::vector<std::pair<int64_t, int>> runs;  // Runs of store-all, as (bytes of the moment, group).
    const Schedule plain = store_all(graph_);
    const Simulation simulation = simulate(graph_, plain);
    for (size_t i = 0; i < plain.steps.size(); ++i) {
      if (!plain.steps[i].is_run()) continue;
      const int group = dependences_.groups().group_of_op[index(plain.steps[i].op())];
      if (dependences_.groups().needed[at(group)] != 0) runs.emplace_back(simulation.moment_bytes[i], group);
    }
    const size_t even = std::min(runs.size(), at(parameters.even_moments));
    const size_t largest = std::min(runs.size(), at(parameters.largest_moments));
    std::vector<int> groups;
    for (size_t i = 0; i < even; ++i) groups.push_back(runs[i * runs.size() / even].second);
    std::ranges::stable_sort(runs, std::greater<>(), [](const auto& run) { return run.first; });
    for (size_t i = 0; i < largest; ++i) groups.push_back(runs[i].second);
    std::ranges::sort(groups);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    std::vector<Moment> moments;
    for (const int group : groups) moments.push_back(moment_of(group));
    std::ranges::stable_sort(moments, std::greater<>(),
                             [](const Moment& moment) { return moment.wanted_bytes + moment.own_bytes; });
    return moments;
  }

  Moment moment_of(int group) const {
    Moment moment;
    moment.group = group;
    moment.is_own.assign(graph_.values().size(), 0);
    const std::vector<OpId>& ops = dependences_.groups().ops[at(group)];
    // Each alternative has a different moment; the bound assumes the smallest.
    int64_t least_bytes = std::numeric_limits<int64_t>::max();
    for (const OpId id : ops) {
      const Op& op = graph_.op(id);
      int64_t bytes = op.workspace_bytes;
      int64_t in_place = 0;
      for (const std::vector<ValueId>* ids : {&op.inputs, &op.outputs}) {
        for (const ValueId value : *ids) {
          moment.is_own[index(value)] = 1;
          if (!graph_.value(value).resident) bytes += graph_.value(value).bytes;
        }
      }
      for (const ValueId value : op.overwrites) in_place = std::max(in_place, graph_.value(value).bytes);
      least_bytes = std::min(least_bytes, bytes - in_place);
    }
    moment.own_bytes = graph_.resident_bytes() + least_bytes;
    const std::vector<uint8_t> before = dependences_.ancestors(group);
    const std::vector<uint8_t> after = dependences_.descendants(group);
    std::vector<uint8_t> is_wanted(graph_.values().size(), 0);
    const auto want = [&](ValueId id) {
      const size_t v = index(id);
      if (graph_.value(id).resident || moment.is_own[v] != 0 || is_wanted[v] != 0) return;
      if (before[at(dependences_.group_of(id))] == 0) return;
      is_wanted[v] = 1;
      moment.wanted.push_back(id);
      moment.wanted_bytes += graph_.value(id).bytes;
    };
    for (size_t g = 0; g < after.size(); ++g)
      if (after[g] != 0 && dependences_.groups().needed[g] != 0)
        for (const ValueId id : dependences_.common_inputs(dependences_.groups().ops[g])) want(id);
    for (const ValueId id : graph_.outputs()) want(id);
    return moment;
  }

  /// Returns the price with smaller weights where costs would not fit. Any price gives a bound, so rounding is safe.
  Price fitting(Price price) const {
    while (price.cost(total_ns_, total_bytes_) >= MaxFlow::kUnlimited) {
      price.time_weight /= 2;
      price.byte_weight /= 2;
    }
    return price;
  }

  /// The ways to fit a moment into the budget, as cuts of a flow network. Cutting an edge of `keeps` keeps its value;
  /// cutting an edge of `reruns` runs its group again.
  struct Network {
    MaxFlow flow{2};                              ///< Node 0 is the source, and node 1 the sink.
    std::vector<std::pair<int, ValueId>> keeps;   ///< Pairs of edge and value.
    std::vector<std::pair<int, int64_t>> reruns;  ///< Pairs of edge and time in nanoseconds.
  };

  /// Returns the network of a moment without capacities, which depend on the price.
  Network network_of(const Moment& moment) const {
    Network network;
    MaxFlow& flow = network.flow;
    // A value has a node if it may be needed after the moment, and a group has a node if it may run again.
    std::vector<int> node_of_value(graph_.values().size(), -1);
    std::vector<int> node_of_group(dependences_.groups().ops.size(), -1);
    std::vector<ValueId> open;
    const auto need = [&](ValueId id) {
      int& node = node_of_value[index(id)];
      if (node < 0) {
        node = flow.add_node();
        open.push_back(id);
      }
      return node;
    };
    for (const ValueId id : moment.wanted) flow.add_edge(0, need(id), MaxFlow::kUnlimited);
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const int group = dependences_.group_of(id);
      int again = node_of_group[at(group)];
      if (again < 0) {
        again = node_of_group[at(group)] = flow.add_node();
        const std::vector<OpId>& ops = dependences_.groups().ops[at(group)];
        // An op that may run only once has run before, unless an alternative has run instead.
        if (ops.size() > 1 || graph_.op(ops.front()).recompute) {
          network.reruns.emplace_back(flow.add_edge(again, 1, 0), fastest_ns(graph_, ops));
          for (const ValueId input : dependences_.common_inputs(ops))
            if (!graph_.value(input).resident && moment.is_own[index(input)] == 0)
              flow.add_edge(again, need(input), MaxFlow::kUnlimited);
        } else {
          flow.add_edge(again, 1, MaxFlow::kUnlimited);
        }
      }
      network.keeps.emplace_back(flow.add_edge(node_of_value[index(id)], again, 0), id);
    }
    return network;
  }

  /// Returns the cheapest way at a price.
  Line cheapest(Network& network, const Price& price) const {
    MaxFlow& flow = network.flow;
    for (const auto& [edge, time_ns] : network.reruns) flow.set_capacity(edge, price.time_weight * time_ns);
    for (const auto& [edge, id] : network.keeps) flow.set_capacity(edge, price.byte_weight * graph_.value(id).bytes);
    Line line{.cost = flow.run(0, 1)};
    HEADROOM_ASSERT(flow.find_error() == nullptr);  // The bound is proved by this flow.
    for (const auto& [edge, time_ns] : network.reruns)
      if (flow.is_cut(edge)) line.time_ns += time_ns;
    for (const auto& [edge, id] : network.keeps) {
      if (!flow.is_cut(edge)) continue;
      line.bytes += graph_.value(id).bytes;
      line.kept.push_back(id);
    }
    return line;
  }

  /// Returns the largest bound over all prices, or none where no way fits. `way` becomes the fastest way found that
  /// fits.
  std::optional<Extra> find_extra(const Moment& moment, int64_t room_bytes, Line& way) const {
    Network network = network_of(moment);
    Line all{.bytes = moment.wanted_bytes};
    // At this price, one byte less is worth any time.
    Line least = cheapest(network, fitting({.time_weight = 1, .byte_weight = FlowAmount{total_ns_} + 1}));
    if (least.bytes > room_bytes) return std::nullopt;
    Extra best;
    for (int i = 0; i < max_prices_ && all.bytes > least.bytes; ++i) {
      const Price price = fitting({.time_weight = all.bytes - least.bytes, .byte_weight = least.time_ns - all.time_ns});
      if (price.time_weight == 0 || price.byte_weight < 0) break;
      Line line = cheapest(network, price);
      const FlowAmount excess = line.cost - price.byte_weight * room_bytes;
      if (excess > 0) {
        const Extra extra{
            .whole_ns = excess / price.time_weight,
            .fraction = static_cast<double>(excess % price.time_weight) / static_cast<double>(price.time_weight)};
        if (extra.exceeds(best)) best = extra;
      }
      if (line.cost >= price.cost(all.time_ns, all.bytes)) break;
      (line.bytes > room_bytes ? all : least) = std::move(line);
    }
    way = std::move(least);
    return best;
  }

  const Graph& graph_;
  Dependences dependences_;
  int64_t least_ns_;
  int64_t total_ns_ = 0;     ///< Time of all ops.
  int64_t total_bytes_ = 0;  ///< Bytes of all values.
  int max_prices_;
  std::vector<Moment> moments_;
};

MemoryBounds::MemoryBounds(const Graph& graph, const MemoryBoundParameters& parameters)
    : moments_(std::make_unique<const Moments>(graph, parameters)), max_cuts_(parameters.max_cuts) {}
MemoryBounds::~MemoryBounds() = default;

MemoryBound MemoryBounds::within(int64_t budget_bytes) const { return within(budget_bytes, max_cuts_); }

MemoryBound MemoryBounds::within(int64_t budget_bytes, int max_cuts) const {
  return moments_->bound(budget_bytes, max_cuts);
}

MemoryBound memory_bound(const Graph& graph, int64_t budget_bytes, const MemoryBoundParameters& parameters) {
  return MemoryBounds(graph, parameters).within(budget_bytes);
}

}  // namespace headroom::internal
