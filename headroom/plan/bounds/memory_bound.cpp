#include "headroom/plan/bounds/memory_bound.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
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
  /// Returns the groups that depend on a group directly.
  const std::vector<int>& readers(int group) const { return after_[at(group)]; }
  int group_of(ValueId id) const { return groups_.group_of_op[index(graph_.producers(id).front())]; }
  /// Return the groups that have run, or have not, when a group runs for the first time: those that it depends on, or
  /// that depend on it. With `keep_order` also needed groups that are listed before, or after, all of the group.
  std::vector<uint8_t> before(int group, bool keep_order) const {
    std::vector<int> from{group};
    const OpId first = groups_.ops[at(group)].front();
    for (size_t g = 0; keep_order && g < groups_.ops.size(); ++g)
      if (groups_.needed[g] != 0 && groups_.ops[g].back() < first) from.push_back(static_cast<int>(g));
    return reached(before_, std::move(from));
  }
  std::vector<uint8_t> after(int group, bool keep_order) const {
    std::vector<int> from{group};
    const OpId last = groups_.ops[at(group)].back();
    for (size_t g = 0; keep_order && g < groups_.ops.size(); ++g)
      if (groups_.needed[g] != 0 && groups_.ops[g].front() > last) from.push_back(static_cast<int>(g));
    return reached(after_, std::move(from));
  }

  /// Returns the values that all of some ops read.
  std::vector<ValueId> common_inputs(std::span<const OpId> ops) const {
    std::vector<ValueId> ids = graph_.op(ops.front()).inputs;
    std::erase_if(ids, [&](ValueId id) {
      return !std::ranges::all_of(ops, [&](OpId op) { return contains(graph_.op(op).inputs, id); });
    });
    return ids;
  }

 private:
  /// Returns the groups that can be reached from some groups along edges, and those groups except the first.
  static std::vector<uint8_t> reached(const std::vector<std::vector<int>>& edges, std::vector<int> open) {
    std::vector<uint8_t> seen(edges.size(), 0);
    for (const int g : std::span(open).subspan(1)) seen[at(g)] = 1;
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
  int64_t own_bytes = 0;   ///< Lower bound on the bytes of the op's inputs, outputs, workspace and the resident values.
  int64_t base_bytes = 0;  ///< Bytes of other values that are live if groups run in base order, each once.
  std::vector<ValueId> wanted;   ///< Values needed after it that may be produced before, without the op's own.
  std::vector<uint8_t> is_own;   ///< By value: whether it is an input or an output of the op.
  std::vector<uint8_t> is_free;  ///< By group: whether it may first run before or after it.
};

}  // namespace

class MemoryBounds::Moments {
 public:
  Moments(const Graph& graph, const MemoryBoundParameters& parameters)
      : graph_(graph),
        dependences_(graph),
        least_ns_(time_lower_bound_ns(graph)),
        keep_order_(parameters.keep_order),
        max_prices_(parameters.max_prices),
        moments_(find_moments(parameters)) {
    for (const Op& op : graph.ops()) total_ns_ += op.time_ns;
    for (const Value& value : graph.values()) total_bytes_ += value.bytes;
  }

  MemoryBound bound(int64_t budget_bytes, int max_cuts) const {
    MemoryBound bound{.time_ns = least_ns_, .is_feasible = true, .moment = {}, .kept = {}, .postponed = {}};
    Extra extra;
    int tried = 0;
    for (const Moment& moment : moments_) {
      const int64_t room_bytes = budget_bytes - moment.own_bytes;
      if (moment.base_bytes <= room_bytes || tried++ == max_cuts) break;
      Line way{};
      const std::optional<Extra> found = find_extra(moment, room_bytes, way);
      if (!found) return {.time_ns = bound.time_ns, .is_feasible = false, .moment = {}, .kept = {}, .postponed = {}};
      if (!bound.moment.empty() && !found->exceeds(extra)) continue;
      extra = *found;
      bound.moment = dependences_.groups().ops[at(moment.group)];
      bound.kept = std::move(way.kept);
      bound.postponed = std::move(way.postponed);
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
    std::vector<OpId> postponed = {};
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
    const size_t largest = std::min(runs.size(), at(parameters.largest_moments));
    std::vector<int> groups;
    std::ranges::stable_sort(runs, std::greater<>(), [](const auto& run) { return run.first; });
    for (size_t i = 0; i < largest; ++i) groups.push_back(runs[i].second);
    std::ranges::sort(groups);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    std::vector<Moment> moments;
    for (const int group : groups) moments.push_back(moment_of(group));
    std::ranges::stable_sort(moments, std::greater<>(),
                             [](const Moment& moment) { return moment.base_bytes + moment.own_bytes; });
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
    const std::vector<uint8_t> before = dependences_.before(group, keep_order_);
    const std::vector<uint8_t> after = dependences_.after(group, keep_order_);
    moment.is_free.assign(after.size(), 0);
    for (size_t g = 0; g < after.size(); ++g)
      if (before[g] == 0 && after[g] == 0 && dependences_.groups().needed[g] != 0 && g != at(group))
        moment.is_free[g] = 1;
    find_wanted(moment, before);
    return moment;
  }

  /// Finds the values that are needed after a moment, and those that are live then in base order. A group's number is
  /// larger than those of the groups that it depends on.
  void find_wanted(Moment& moment, const std::vector<uint8_t>& before) const {
    std::vector<uint8_t> is_wanted(graph_.values().size(), 0);
    std::vector<uint8_t> is_live(graph_.values().size(), 0);
    const auto is_early = [&](int g) { return moment.is_free[at(g)] != 0 ? g < moment.group : before[at(g)] != 0; };
    const auto want = [&](ValueId id, bool is_sure) {
      const size_t v = index(id);
      if (graph_.value(id).resident || moment.is_own[v] != 0) return;
      const int maker = dependences_.group_of(id);
      if (is_early(maker) && is_live[v]++ == 0) moment.base_bytes += graph_.value(id).bytes;
      if (!is_sure || is_wanted[v] != 0 || (before[at(maker)] == 0 && moment.is_free[at(maker)] == 0)) return;
      is_wanted[v] = 1;
      moment.wanted.push_back(id);
    };
    const NeededGroups& groups = dependences_.groups();
    for (size_t g = 0; g < groups.ops.size(); ++g)
      if (groups.needed[g] != 0 && g != at(moment.group) && !is_early(static_cast<int>(g)))
        for (const ValueId id : dependences_.common_inputs(groups.ops[g])) want(id, moment.is_free[g] == 0);
    for (const ValueId id : graph_.outputs()) want(id, true);
  }

  /// Returns the price with smaller weights where costs would not fit. Any price gives a bound, so rounding is safe.
  Price fitting(Price price) const {
    while (price.cost(total_ns_, total_bytes_) >= MaxFlow::kUnlimited) {
      price.time_weight /= 2;
      price.byte_weight /= 2;
    }
    return price;
  }

  /// The ways to fit a moment into the budget, as cuts of a flow network. The source reaches what is needed after the
  /// moment. Cutting an edge of `keeps` keeps its value; cutting an edge of `reruns` runs its group again.
  struct Network {
    MaxFlow flow{2};                              ///< Node 0 is the source, and node 1 the sink.
    std::vector<std::pair<int, ValueId>> keeps;   ///< Pairs of edge and value.
    std::vector<std::pair<int, int64_t>> reruns;  ///< Pairs of edge and time in nanoseconds.
    std::vector<std::pair<int, int>> later;       ///< Pairs of node and group: the group first runs after the moment.
  };

  /// Makes the network of a moment.
  class NetworkMaker {
   public:
    NetworkMaker(const Moments& moments, const Moment& moment)
        : graph_(moments.graph_),
          dependences_(moments.dependences_),
          moment_(moment),
          node_of_value_(graph_.values().size(), -1),
          node_of_group_(dependences_.groups().ops.size(), -1),
          node_of_later_(dependences_.groups().ops.size(), -1) {}

    /// Returns the network without capacities, which depend on the price.
    Network make() {
      for (const ValueId id : moment_.wanted) network_.flow.add_edge(0, need(id), MaxFlow::kUnlimited);
      while (!open_values_.empty() || !open_groups_.empty()) {
        if (!open_groups_.empty()) {
          const int group = open_groups_.back();
          open_groups_.pop_back();
          add_later(group);
        } else {
          const ValueId id = open_values_.back();
          open_values_.pop_back();
          const int again = again_of(dependences_.group_of(id));
          network_.keeps.emplace_back(network_.flow.add_edge(node_of_value_[index(id)], again, 0), id);
        }
      }
      return std::move(network_);
    }

   private:
    /// Returns the node of a value that may be needed after the moment.
    int need(ValueId id) {
      int& node = node_of_value_[index(id)];
      if (node < 0) {
        node = network_.flow.add_node();
        open_values_.push_back(id);
      }
      return node;
    }
    void need_inputs(int node, int group) {
      for (const ValueId id : dependences_.common_inputs(dependences_.groups().ops[at(group)]))
        if (!graph_.value(id).resident && moment_.is_own[index(id)] == 0)
          network_.flow.add_edge(node, need(id), MaxFlow::kUnlimited);
    }
    /// Returns the node of a group that may run for the first time after the moment.
    int later_of(int group) {
      int& node = node_of_later_[at(group)];
      if (node < 0) {
        node = network_.flow.add_node();
        network_.later.emplace_back(node, group);
        open_groups_.push_back(group);
      }
      return node;
    }
    void add_later(int group) {
      const int node = node_of_later_[at(group)];
      need_inputs(node, group);
      for (const int reader : dependences_.readers(group))
        if (moment_.is_free[at(reader)] != 0) network_.flow.add_edge(node, later_of(reader), MaxFlow::kUnlimited);
    }
    /// Returns the node of a group that may run after the moment.
    int again_of(int group) {
      int& node = node_of_group_[at(group)];
      if (node >= 0) return node;
      const int again = node = network_.flow.add_node();
      // A group that may first run after the moment runs there at no cost.
      const int end = moment_.is_free[at(group)] != 0 ? later_of(group) : 1;
      const std::vector<OpId>& ops = dependences_.groups().ops[at(group)];
      // An op that may run only once has run before, unless an alternative has run instead.
      if (ops.size() > 1 || graph_.op(ops.front()).recompute) {
        network_.reruns.emplace_back(network_.flow.add_edge(again, end, 0), fastest_ns(graph_, ops));
        need_inputs(again, group);
      } else {
        network_.flow.add_edge(again, end, MaxFlow::kUnlimited);
      }
      return again;
    }

    const Graph& graph_;
    const Dependences& dependences_;
    const Moment& moment_;
    Network network_;
    std::vector<int> node_of_value_;
    std::vector<int> node_of_group_;  ///< By group: its node if it may run after the moment.
    std::vector<int> node_of_later_;  ///< By group: its node if it may first run after the moment.
    std::vector<ValueId> open_values_;
    std::vector<int> open_groups_;
  };

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
    for (const auto& [node, group] : network.later) {
      if (!flow.is_reached(node)) continue;
      const std::vector<OpId>& ops = dependences_.groups().ops[at(group)];
      line.postponed.insert(line.postponed.end(), ops.begin(), ops.end());
    }
    return line;
  }

  /// Returns the largest bound over all prices, or none where no way fits. `way` becomes the fastest way found that
  /// fits.
  std::optional<Extra> find_extra(const Moment& moment, int64_t room_bytes, Line& way) const {
    Network network = NetworkMaker(*this, moment).make();
    Line all{.bytes = moment.base_bytes};
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
  bool keep_order_;
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
