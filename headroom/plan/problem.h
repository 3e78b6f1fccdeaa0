#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <typeindex>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"

namespace headroom {

/// Objects that planners keep with a problem from one request to the next: one of each type, created when it is first
/// asked for. Safe to use from several threads.
class PlannerCache {
 public:
  template <typename T>
  T& get() {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<void>& object = objects_[typeid(T)];
    if (!object) object = std::make_shared<T>();
    return *static_cast<T*>(object.get());
  }

 private:
  std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> objects_;
};

/// The input of planners: a training step, and the chain that it is, if it is one. Where there is a chain, the graph
/// has the ids of ChainIds. The figures of store-all, the baseline, are computed once. Neither graph nor chain changes.
struct Problem {
  explicit Problem(Graph step, std::optional<Chain> same = std::nullopt);

  Graph graph;
  std::optional<Chain> chain;
  int64_t base_peak_bytes;              ///< of store-all
  int64_t base_time_ns;                 ///< of store-all
  int64_t lower_bound_ns;               ///< time_lower_bound_ns()
  std::shared_ptr<PlannerCache> cache;  ///< shared by copies of a problem
};

/// Returns the problem of a graph; a graph that is a chain comes with it, its values renumbered.
Problem make_problem(const Graph& graph);
Problem make_problem(const Chain& chain);

}  // namespace headroom
