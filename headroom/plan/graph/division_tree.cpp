#include "headroom/plan/graph/division_tree.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

#include "headroom/algorithm/separation.h"
#include "headroom/algorithm/union_find.h"
#include "headroom/core/error.h"
#include "headroom/plan/graph/segments.h"

namespace headroom::internal {
namespace {

constexpr int64_t kMostWork = 200'000'000;

size_t at(int position) { return static_cast<size_t>(position); }

/// A graph in which every vertex lies on a path from the first to the last vertex, in a topological order.
struct Network {
  std::vector<std::vector<int>> next;      // Ascending.
  std::vector<std::vector<int>> previous;  // Ascending.
  std::vector<int> vertex;  // By position: vertex of the forward graph; -1 for the source, which comes first.

  int size() const { return static_cast<int>(vertex.size()); }
};

/// Returns the positions strictly between 0 and count-1 that no edge (a, b), a < b, passes over.
std::vector<int> splitting_positions(int count, std::span<const std::pair<int, int>> edges) {
  std::vector<int> change(at(count) + 1, 0);
  for (const auto& [a, b] : edges) {
    ++change[at(a) + 1];
    --change[at(b)];
  }
  std::vector<int> positions;
  int over = 0;
  for (int p = 1; p + 1 < count; ++p) {
    over += change[at(p)];
    if (over == 0) positions.push_back(p);
  }
  return positions;
}

/// The vertices on all paths from the first vertex of the longest path to its last, in base order.
struct Core {
  int first = -1;             ///< vertex
  std::vector<int> members;   ///< vertices
  std::vector<int> position;  ///< by vertex, in `members`; -1: it is no member
  std::vector<int> row;       ///< positions of the members that all these paths go through, both ends included
};

Core find_core(const ForwardGraph& forward) {
  const int n = forward.size();
  const auto& before = forward.predecessors;
  const auto& after = forward.successors;
  std::vector<int> depth(at(n), 0);
  std::vector<int> deepest(at(n), -1);  // By vertex: its predecessor on the longest path.
  int target = -1;
  for (int v = 0; v < n; ++v) {
    for (const int u : before[at(v)]) {
      if (depth[at(u)] + 1 > depth[at(v)]) {
        depth[at(v)] = depth[at(u)] + 1;
        deepest[at(v)] = u;
      }
    }
    if (after[at(v)].empty() && (target < 0 || depth[at(v)] >= depth[at(target)])) target = v;
  }
  int first = target;
  while (deepest[at(first)] >= 0) first = deepest[at(first)];

  std::vector<uint8_t> below(at(n), 0);
  std::vector<uint8_t> above(at(n), 0);
  below[at(first)] = 1;
  above[at(target)] = 1;
  for (int v = 0; v < n; ++v) {
    for (const int u : before[at(v)]) below[at(v)] |= below[at(u)];
  }
  for (int v = n; v-- > 0;) {
    for (const int w : after[at(v)]) above[at(v)] |= above[at(w)];
  }
  Core core{first, {}, std::vector<int>(at(n), -1), {}};
  for (int v = 0; v < n; ++v) {
    if (above[at(v)] == 0 || below[at(v)] == 0) continue;
    core.position[at(v)] = static_cast<int>(core.members.size());
    core.members.push_back(v);
  }
  Edges inside;
  for (const int v : core.members) {
    for (const int w : after[at(v)]) {
      if (core.position[at(w)] >= 0) inside.emplace_back(core.position[at(v)], core.position[at(w)]);
    }
  }
  const int count = static_cast<int>(core.members.size());
  core.row = splitting_positions(count, inside);
  core.row.insert(core.row.begin(), 0);
  if (count > 1) core.row.push_back(count - 1);
  return core;
}

/// Returns the edges to add so that there is one source, `source`, and one target. They attach vertices without
/// predecessors or successors to the row of vertices that all paths from the longest path's first vertex to its last go
/// through.
///
///     s ──▶ a ──▶ b ──▶ t        x reads a and is read only in backward: x ──▶ b is added
///           └──▶ x   y ─▲        y reads nothing and t reads it:         b ──▶ y
Edges side_edges(const ForwardGraph& forward, int source) {
  const int n = forward.size();
  const auto& before = forward.predecessors;
  const auto& after = forward.successors;
  const Core core = find_core(forward);
  const int count = static_cast<int>(core.members.size());

  // A source is attached below the last vertex of the row that lies before everything in the core that the source leads
  // to.
  Edges added = {{source, core.first}};
  std::vector<int> leads_to(at(n), count);
  for (int v = n; v-- > 0;) {
    if (core.position[at(v)] >= 0) {
      leads_to[at(v)] = core.position[at(v)];
      continue;
    }
    for (const int w : after[at(v)]) leads_to[at(v)] = std::min(leads_to[at(v)], leads_to[at(w)]);
  }
  std::vector<int> comes_from(at(n), -1);
  for (int v = 0; v < n; ++v) {
    if (core.position[at(v)] >= 0) {
      comes_from[at(v)] = core.position[at(v)];
      continue;
    }
    if (before[at(v)].empty()) {
      if (leads_to[at(v)] == count) {
        added.emplace_back(source, v);
      } else {
        comes_from[at(v)] = *std::prev(std::ranges::lower_bound(core.row, leads_to[at(v)]));
        added.emplace_back(core.members[at(comes_from[at(v)])], v);
      }
    }
    for (const int u : before[at(v)]) comes_from[at(v)] = std::max(comes_from[at(v)], comes_from[at(u)]);
    // A target is attached above the first vertex of the row that lies after everything in the core that leads to the
    // target.
    if (after[at(v)].empty()) {
      added.emplace_back(v, core.members[at(*std::ranges::upper_bound(core.row, comes_from[at(v)]))]);
    }
  }
  return added;
}

Network network_of(const ForwardGraph& forward) {
  const int n = forward.size();
  const int source = n;
  std::vector<std::vector<int>> next(at(n) + 1);
  std::vector<int> missing(at(n) + 1, 0);
  const auto add = [&](int u, int v) {
    next[at(u)].push_back(v);
    ++missing[at(v)];
  };
  for (int v = 0; v < n; ++v) {
    for (const int w : forward.successors[at(v)]) add(v, w);
  }
  for (const auto& [u, v] : side_edges(forward, source)) add(u, v);

  Network network;
  std::vector<int> position(at(n) + 1, -1);
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  ready.push(source);
  while (!ready.empty()) {
    const int v = ready.top();
    ready.pop();
    position[at(v)] = network.size();
    network.vertex.push_back(v == source ? -1 : v);
    for (const int w : next[at(v)]) {
      if (--missing[at(w)] == 0) ready.push(w);
    }
  }
  HEADROOM_ASSERT(network.size() == n + 1);
  network.next.resize(at(n) + 1);
  network.previous.resize(at(n) + 1);
  for (int p = 0; p <= n; ++p) {
    const int v = network.vertex[at(p)];
    for (const int w : next[at(v < 0 ? source : v)]) network.next[at(p)].push_back(position[at(w)]);
    std::ranges::sort(network.next[at(p)]);
    for (const int q : network.next[at(p)]) network.previous[at(q)].push_back(p);
  }
  return network;
}

/// Divides segments until no vertices are inside them.
class Divider {
 public:
  Divider(const ForwardGraph& forward, const Network& network)
      : forward_(forward), network_(network), local_(at(network.size())) {}

  DivisionTree divide() {
    Task root{0, 0, network_.size() - 1, false, {}};
    for (int v = 1; v + 1 < network_.size(); ++v) root.inside.push_back(v);
    root.direct = has_edge(root.source, root.target);
    tree_.nodes.emplace_back();
    tasks_.push_back(std::move(root));
    while (!tasks_.empty()) {
      const Task task = std::move(tasks_.back());
      tasks_.pop_back();
      divide(task);
    }
    return std::move(tree_);
  }

 private:
  /// A segment that is still to be divided. Its inner vertices have edges only among themselves and with its ends.
  struct Task {
    int node;
    int source, target;
    bool direct;              // Whether an edge from source to target belongs to it.
    std::vector<int> inside;  // Ascending.
  };

  int add_child(int source, int target, bool direct, std::vector<int> inside) {
    const int node = static_cast<int>(tree_.nodes.size());
    tree_.nodes.emplace_back();
    tasks_.push_back({node, source, target, direct, std::move(inside)});
    return node;
  }

  void divide(const Task& task) {
    const int count = static_cast<int>(task.inside.size()) + 2;
    local_[at(task.source)] = 0;
    local_[at(task.target)] = count - 1;
    for (int i = 0; i + 2 < count; ++i) local_[at(task.inside[at(i)])] = i + 1;
    Edges edges;
    if (task.direct) edges.emplace_back(0, count - 1);
    DivisionNode node;
    node.source = network_.vertex[at(task.source)];
    node.target = network_.vertex[at(task.target)];
    for (const int v : task.inside) {
      node.cost_bytes += forward_.vertex(network_.vertex[at(v)]).size_bytes;
      if (std::ranges::binary_search(network_.previous[at(v)], task.source)) edges.emplace_back(0, local_[at(v)]);
      for (const int w : network_.next[at(v)]) edges.emplace_back(local_[at(v)], local_[at(w)]);
    }
    const std::vector<int> splitting = splitting_positions(count, edges);
    if (!splitting.empty() || task.inside.empty()) {
      divide_linear(task, node, splitting);
    } else if (!divide_branch(task, node, edges)) {
      divide_complicated(task, node, edges);
    }
    tree_.nodes[at(task.node)] = std::move(node);
  }

  int network_position(const Task& task, int local) const {
    if (local == 0) return task.source;
    return at(local) == task.inside.size() + 1 ? task.target : task.inside[at(local) - 1];
  }
  bool has_edge(int from, int to) const { return std::ranges::binary_search(network_.previous[at(to)], from); }

  void divide_linear(const Task& task, DivisionNode& node, const std::vector<int>& splitting) {
    node.kind = DivisionKind::kLinear;
    int from = 0;
    const auto close = [&](int to) {
      const auto begin = task.inside.begin() + from;
      const auto end = task.inside.begin() + (to - 1);
      const int source = network_position(task, from);
      const int target = network_position(task, to);
      node.children.push_back(begin == end ? -1 : add_child(source, target, has_edge(source, target), {begin, end}));
      from = to;
    };
    for (const int position : splitting) {
      node.joints.push_back(network_.vertex[at(network_position(task, position))]);
      close(position);
    }
    close(static_cast<int>(task.inside.size()) + 1);
  }

  bool divide_branch(const Task& task, DivisionNode& node, const Edges& edges) {
    const int last = static_cast<int>(task.inside.size()) + 1;
    UnionFind sets(last + 1);
    for (const auto& [a, b] : edges) {
      if (a != 0 && b != last) sets.join(a, b);
    }
    std::vector<std::vector<int>> parts;
    std::vector<int> part_of(at(last), -1);
    for (int v = 1; v < last; ++v) {
      int& part = part_of[at(sets.find(v))];
      if (part < 0) {
        part = static_cast<int>(parts.size());
        parts.emplace_back();
      }
      parts[at(part)].push_back(network_position(task, v));
    }
    if (parts.size() == 1 && !task.direct) return false;
    node.kind = DivisionKind::kBranch;
    for (std::vector<int>& part : parts) {
      node.children.push_back(add_child(task.source, task.target, false, std::move(part)));
    }
    return true;
  }

  void divide_complicated(const Task& task, DivisionNode& node, const Edges& edges) {
    node.kind = DivisionKind::kComplicated;
    const int count = static_cast<int>(task.inside.size()) + 2;
    Separation separation(count, edges);
    const int64_t work = separation.work();
    const bool whole = work <= work_left_;
    if (whole) work_left_ -= work;
    std::vector<uint8_t> covered(at(count), 0);
    for (Separation::Segment& segment : whole ? separation.largest_segments() : separation.runs()) {
      const int source = network_position(task, segment.source);
      const int target = network_position(task, segment.target);
      for (int& v : segment.inside) {
        covered[at(v)] = 1;
        v = network_position(task, v);
      }
      // Several segments can have the same ends; the edge between the ends belongs to none of them.
      node.children.push_back(add_child(source, target, whole && has_edge(source, target), std::move(segment.inside)));
    }
    for (int v = 1; v + 1 < count; ++v) {
      if (covered[at(v)] == 0) node.joints.push_back(network_.vertex[at(network_position(task, v))]);
    }
  }

  const ForwardGraph& forward_;
  const Network& network_;
  std::vector<int> local_;
  std::vector<Task> tasks_;
  DivisionTree tree_;
  int64_t work_left_ = kMostWork;
};

/// Chooses the vertices to keep for one bound on the bytes between kept vertices.
class Chooser {
 public:
  Chooser(const ForwardGraph& forward, const DivisionTree& tree, int64_t bound)
      : forward_(forward), tree_(tree), bound_(bound) {}

  Cut choose() {
    if (is_open(0)) {
      open_.push_back(0);
    } else {
      cut_.largest_inner = cost(0);
    }
    while (!open_.empty()) {
      const DivisionNode& node = tree_.nodes[at(open_.back())];
      open_.pop_back();
      if (node.kind == DivisionKind::kLinear) {
        choose_linear(node);
        continue;
      }
      for (const int joint : node.joints) keep(joint);
      for (const int child : node.children) visit(child);
    }
    std::ranges::sort(cut_.kept);
    return std::move(cut_);
  }

 private:
  int64_t cost(int node) const { return node < 0 ? 0 : tree_.nodes[at(node)].cost_bytes; }
  bool is_open(int node) const { return cost(node) > bound_; }
  void keep(int vertex) {
    cut_.kept.push_back(vertex);
    cut_.kept_sum += forward_.vertex(vertex).kept_bytes;
  }
  void visit(int child) {
    if (is_open(child)) {
      open_.push_back(child);
    } else {
      cut_.largest_inner = std::max(cut_.largest_inner, cost(child));
    }
  }

  void choose_linear(const DivisionNode& node) {
    const int children = static_cast<int>(node.children.size());
    for (int i = 0; i + 1 < children; ++i) {
      if (is_open(node.children[at(i)]) || is_open(node.children[at(i) + 1])) keep(node.joints[at(i)]);
    }
    for (int begin = 0; begin < children;) {
      int end = begin;
      while (end < children && !is_open(node.children[at(end)])) ++end;
      if (end > begin) choose_run(node, begin, end);
      if (end < children) open_.push_back(node.children[at(end)]);
      begin = end + 1;
    }
  }

  /// Chooses among the joints between the children begin..end-1, none of which is opened, between vertices that are
  /// kept.
  void choose_run(const DivisionNode& node, int begin, int end) {
    sizes_.clear();
    links_.clear();
    int64_t bound = bound_;
    for (int i = begin; i < end; ++i) {
      int64_t size = 0;
      int64_t link = cost(node.children[at(i)]);
      if (at(i) < node.joints.size()) {
        const ForwardVertex& joint = forward_.vertex(node.joints[at(i)]);
        size = joint.kept_bytes;
        link += joint.size_bytes - joint.kept_bytes;
      }
      sizes_.push_back(size);
      links_.push_back(link);
      bound = std::max(bound, link);
    }
    const Cut run = least_cut_within(sizes_, links_, bound);
    for (const int position : run.kept) keep(node.joints[at(begin + position - 1)]);
    cut_.largest_inner = std::max(cut_.largest_inner, run.largest_inner);
  }

  const ForwardGraph& forward_;
  const DivisionTree& tree_;
  int64_t bound_;
  Cut cut_;
  std::vector<int> open_;
  std::vector<int64_t> sizes_, links_;
};

}  // namespace

DivisionTree division_tree(const ForwardGraph& forward) { return Divider(forward, network_of(forward)).divide(); }

Cut least_division(const ForwardGraph& forward, const DivisionTree& tree) {
  return least_over_bounds(tree.nodes.front().cost_bytes,
                           [&](int64_t bound) { return Chooser(forward, tree, bound).choose(); });
}

PlanResult plan_division_tree(const Graph& graph, const PlanRequest&) {
  const ForwardGraph forward = forward_graph(graph, "division-tree");
  const DivisionTree tree = division_tree(forward);
  const Cut cut = least_division(forward, tree);
  PlanResult result;
  result.status = PlanStatus::kFeasible;
  result.schedule = segment_schedule(graph, forward, connected_segments(forward, cut.kept, tree.nodes.front().target));
  return result;
}

}  // namespace headroom::internal
