#include "headroom/plan/graph/segments.h"

#include <algorithm>

#include "headroom/algorithm/union_find.h"
#include "headroom/core/error.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal {
namespace {

class Runner {
 public:
  Runner(const Graph& graph, const ForwardGraph& forward, const Segments& segments)
      : graph_(graph),
        forward_(forward),
        segments_(segments),
        groups_(find_needed_groups(graph)),
        last_backward_read_(graph.values().size(), -1),
        makers_(graph.values().size()),
        available_(graph.values().size(), 0),
        wanted_(graph.values().size(), 0),
        selected_(forward.vertices.size(), 0),
        is_waiting_(forward.vertices.size(), 0) {
    const auto n = forward.vertices.size();
    HEADROOM_ASSERT(segments.segment.size() == n && segments.keep.size() == n);
    int count = segments.last + 1;
    for (const int segment : segments.segment) count = std::max(count, segment + 1);
    members_.resize(static_cast<size_t>(count));
    pulled_.resize(static_cast<size_t>(count), 0);
    int next_vertex = 0;
    for (size_t i = 0; i < forward.base.size(); ++i) {
      const Op& op = graph.op(forward.base[i]);
      if (op.phase == Phase::kForward) {
        const int vertex = next_vertex++;
        for (const ValueId id : op.outputs) makers_[index(id)].push_back(vertex);
        members_[static_cast<size_t>(segments.segment[static_cast<size_t>(vertex)])].push_back(vertex);
      } else {
        for (const ValueId id : op.inputs) last_backward_read_[index(id)] = static_cast<int>(i);
      }
    }
    for (size_t v = 0; v < available_.size(); ++v) available_[v] = graph.values()[v].resident ? 1 : 0;
  }

  std::vector<OpId> runs() {
    first_ = find_first_runs();
    int next_vertex = 0;
    for (size_t i = 0; i < forward_.base.size(); ++i) {
      const OpId id = forward_.base[i];
      if (graph_.op(id).phase == Phase::kBackward) {
        for (const ValueId input : graph_.op(id).inputs) {
          if (available_[index(input)] == 0) recompute_missing(input, static_cast<int>(i), next_vertex);
        }
        if (is_needed(id)) run_waiting();
        run(id);
        continue;
      }
      const int vertex = next_vertex++;
      const FirstRun& first = first_[static_cast<size_t>(vertex)];
      if (first.wanted.empty()) continue;
      if (first.is_for_order) {
        waiting_.push_back(vertex);
        is_waiting_[static_cast<size_t>(vertex)] = 1;
        continue;
      }
      if (is_needed(id)) run_waiting();
      runs_.push_back(first_run(vertex, first.wanted));
      for (const ValueId output : graph_.op(runs_.back()).outputs) {
        if (stays(vertex, output)) available_[index(output)] = 1;
      }
    }
    return std::move(runs_);
  }

 private:
  /// Returns whether the value that this vertex writes stays live for backward without any rerun.
  bool stays(int vertex, ValueId id) const {
    const auto v = static_cast<size_t>(vertex);
    const ForwardVertex& info = forward_.vertices[v];
    return !graph_.op(info.op).recompute || graph_.is_output(id) || segments_.segment[v] == segments_.last ||
           (segments_.keep[v] != 0 && std::ranges::binary_search(info.kept, id));
  }

  bool is_needed(OpId op) const { return groups_.needed[static_cast<size_t>(groups_.group_of_op[index(op)])] != 0; }

  OpId first_run(int vertex, const std::vector<ValueId>& wanted) const {
    const OpId op = forward_.vertex(vertex).op;
    return graph_.op(op).recompute ? leanest_producer(graph_, op, wanted) : op;
  }

  /// The values that a vertex must write in its first run; none if it does not run in forward.
  struct FirstRun {
    std::vector<ValueId> wanted;
    /// Whether nothing reads its values in forward. It runs because every schedule must run it, or because such an op
    /// needs it, and may wait until the next op that every schedule must run.
    bool is_for_order = false;
  };

  std::vector<FirstRun> find_first_runs() const {
    std::vector<FirstRun> first(forward_.vertices.size());
    // Goes backwards through base order and notes for each value whether a later op reads it, whether such a reader
    // reads it in forward, and whether a reader runs only for the order.
    enum : uint8_t { kRead = 1, kReadInForward = 2, kReadForOrder = 4 };
    std::vector<uint8_t> reads(graph_.values().size(), 0);
    for (const ValueId id : graph_.outputs()) reads[index(id)] = kRead | kReadInForward;
    auto vertex = forward_.size();
    for (size_t i = forward_.base.size(); i-- > 0;) {
      const Op& op = graph_.op(forward_.base[i]);
      if (op.phase == Phase::kBackward) {
        for (const ValueId id : op.outputs) reads[index(id)] = 0;
        for (const ValueId id : op.inputs) reads[index(id)] |= kRead;
        continue;
      }
      --vertex;
      FirstRun& run = first[static_cast<size_t>(vertex)];
      std::vector<ValueId> for_order;
      for (const ValueId id : op.outputs) {
        uint8_t& read = reads[index(id)];
        const bool taken = (read & kReadInForward) != 0 || ((read & kRead) != 0 && stays(vertex, id));
        if (taken || !op.recompute) {
          run.wanted.push_back(id);
        } else if ((read & kReadForOrder) != 0) {
          for_order.push_back(id);
        }
        read = 0;
      }
      run.is_for_order = run.wanted.empty();
      run.wanted.insert(run.wanted.end(), for_order.begin(), for_order.end());
      if (run.wanted.empty() && is_needed(forward_.base[i])) run.wanted.push_back(op.outputs.front());
      for (const ValueId id : op.inputs) reads[index(id)] |= kRead;
      if (run.wanted.empty()) continue;
      for (const ValueId id : graph_.op(first_run(vertex, run.wanted)).inputs)
        reads[index(id)] |= run.is_for_order ? kReadForOrder : kReadInForward;
    }
    return first;
  }

  void run(OpId id) {
    runs_.push_back(id);
    for (const ValueId output : graph_.op(id).outputs) available_[index(output)] = 1;
  }

  void run_waiting() {
    for (const int vertex : waiting_) {
      runs_.push_back(first_run(vertex, first_[static_cast<size_t>(vertex)].wanted));
      is_waiting_[static_cast<size_t>(vertex)] = 0;
    }
    waiting_.clear();
  }

  /// Returns the last vertex before `limit` that writes the value.
  int maker_before(ValueId id, int limit) const {
    const std::vector<int>& makers = makers_[index(id)];
    const auto after = std::ranges::lower_bound(makers, limit);
    HEADROOM_ASSERT(after != makers.begin());
    return *std::prev(after);
  }

  void want(ValueId id, int maker) {
    wanted_[index(id)] = 1;
    uint8_t& selected = selected_[static_cast<size_t>(maker)];
    if (selected == 0) batch_.push_back(maker);
    selected = 1;
  }

  /// Recomputes a value that the backward op at `now` in base order misses, with all values of its segment that
  /// backward reads from now on. Only the first `limit` vertices have run so far.
  void recompute_missing(ValueId missing, int now, int limit) {
    batch_.clear();
    want(missing, maker_before(missing, limit));
    std::vector<int> pulled;
    for (size_t next = 0; next < batch_.size();) {  // The batch grows in the loop.
      const int vertex = batch_[next++];
      const int segment = segments_.segment[static_cast<size_t>(vertex)];
      if (pulled_[static_cast<size_t>(segment)] == 0) {
        pulled_[static_cast<size_t>(segment)] = 1;
        pulled.push_back(segment);
        for (const int member : members_[static_cast<size_t>(segment)]) {
          if (member >= limit) break;
          for (const ValueId id : graph_.op(forward_.vertex(member).op).outputs) {
            if (available_[index(id)] != 0 || last_backward_read_[index(id)] < now) continue;
            if (maker_before(id, limit) == member) want(id, member);
          }
        }
      }
      for (const ValueId id : graph_.op(forward_.vertex(vertex).op).inputs) {
        if (available_[index(id)] == 0) want(id, maker_before(id, vertex));
      }
    }
    add_waiting();
    std::ranges::sort(batch_);
    std::vector<ValueId> outputs;
    for (const int vertex : batch_) {
      const OpId op = forward_.vertex(vertex).op;
      outputs.clear();
      for (const ValueId id : graph_.op(op).outputs) {
        if (wanted_[index(id)] != 0) outputs.push_back(id);
      }
      const bool is_for_order = outputs.empty();
      if (is_waiting_[static_cast<size_t>(vertex)] != 0) {
        is_waiting_[static_cast<size_t>(vertex)] = 0;
        for (const ValueId id : first_[static_cast<size_t>(vertex)].wanted) {
          if (wanted_[index(id)] == 0) outputs.push_back(id);
        }
      }
      const OpId chosen = leanest_producer(graph_, op, outputs);
      if (is_for_order) {
        runs_.push_back(chosen);
      } else {
        run(chosen);
      }
    }
    std::erase_if(waiting_, [&](int vertex) { return is_waiting_[static_cast<size_t>(vertex)] == 0; });
    for (const int vertex : batch_) {
      selected_[static_cast<size_t>(vertex)] = 0;
      for (const ValueId id : graph_.op(forward_.vertex(vertex).op).outputs) wanted_[index(id)] = 0;
    }
    for (const int segment : pulled) pulled_[static_cast<size_t>(segment)] = 0;
  }

  /// Adds to the batch all waiting vertices that are listed before a waiting vertex in it.
  void add_waiting() {
    const auto is_selected = [&](int vertex) { return selected_[static_cast<size_t>(vertex)] != 0; };
    const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(), is_selected);
    std::for_each(last, waiting_.rend(), [&](int vertex) {
      if (!is_selected(vertex)) batch_.push_back(vertex);
    });
  }

  const Graph& graph_;
  const ForwardGraph& forward_;
  const Segments& segments_;
  NeededGroups groups_;
  std::vector<int> last_backward_read_;    // By value: position in base order of the last backward op that reads it.
  std::vector<std::vector<int>> makers_;   // By value: ascending vertices that write it.
  std::vector<std::vector<int>> members_;  // By segment: its ascending vertices.
  std::vector<uint8_t> available_;         // By value: whether backward can read it.
  std::vector<uint8_t> wanted_;            // By value: whether the current recomputation needs it.
  std::vector<uint8_t> selected_;          // By vertex: whether it is in batch_.
  std::vector<uint8_t> pulled_;            // By segment: whether the current recomputation has included it.
  std::vector<uint8_t> is_waiting_;        // By vertex: whether it is in waiting_.
  std::vector<int> batch_;
  std::vector<FirstRun> first_;  // By vertex.
  std::vector<int> waiting_;     // Ascending vertices that run only for the order and have not run yet.
  std::vector<OpId> runs_;
};

}  // namespace

Segments connected_segments(const ForwardGraph& forward, const std::vector<int>& kept, int target) {
  const int n = forward.size();
  Segments segments;
  segments.keep.assign(static_cast<size_t>(n), 0);
  for (const int v : kept) segments.keep[static_cast<size_t>(v)] = 1;
  const auto apart = [&](int v) { return segments.keep[static_cast<size_t>(v)] != 0 || v == target; };
  UnionFind sets(n);
  segments.last = target;
  for (int v = 0; v < n; ++v) {
    if (apart(v)) continue;
    for (const int w : forward.successors[static_cast<size_t>(v)]) {
      if (!apart(w)) sets.join(v, w);
    }
  }
  for (int v = 0; v < n; ++v) {
    segments.segment.push_back(sets.find(v));
    if (!apart(v)) segments.last = sets.find(v);
  }
  segments.segment[static_cast<size_t>(target)] = segments.last;
  return segments;
}

std::vector<OpId> segment_runs(const Graph& graph, const ForwardGraph& forward, const Segments& segments) {
  return Runner(graph, forward, segments).runs();
}

Schedule segment_schedule(const Graph& graph, const ForwardGraph& forward, const Segments& segments) {
  return with_drops(graph, segment_runs(graph, forward, segments));
}

}  // namespace headroom::internal
