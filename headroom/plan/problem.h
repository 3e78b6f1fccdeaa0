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

/// Objects that planners keep with a problem between requests. There is one object of each type, created when it is
/// first requested. Safe to use from several threads.
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

/// The input of planners: a training step, and the chain that it is equal to, if any. If there is a chain, the graph
/// has the ids of ChainIds. The figures of store-all, the baseline, are computed once. Neither graph nor chain changes.
struct Problem {
  explicit Problem(Graph step, std::optional<Chain> same = std::nullopt);

  Graph graph;
  std::optional<Chain> chain;
  int64_t base_peak_bytes;              ///< Peak of store-all.
  int64_t base_time_ns;                 ///< Time of store-all.
  int64_t lower_bound_ns;               ///< The bound of time_lower_bound_ns().
  std::shared_ptr<PlannerCache> cache;  ///< Shared by copies of a problem.
};

/// Returns the problem of a graph. If the graph is a chain, the problem has the chain, and the graph's values are
/// renumbered.
Problem make_problem(const Graph& graph);
Problem make_problem(const Chain& chain);

}  // namespace headroom
