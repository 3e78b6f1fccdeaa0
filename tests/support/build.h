#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/core/schedule.h"

namespace headroom::internal::testing {

/// Builds graphs by name, with one line per op.
class Builder {
 public:
  explicit Builder(std::string name) { spec_.name = std::move(name); }

  Builder& resident(const std::string& name, int64_t bytes);
  Builder& value(const std::string& name, int64_t bytes);
  /// Adds an op on values that were added before. Returns the op, so that the test can set its other fields.
  Op& op(const std::string& name, int64_t time_ns, const std::vector<std::string>& inputs,
         const std::vector<std::string>& outputs);
  Builder& holds(const std::string& holder, const std::vector<std::string>& held);
  Builder& outputs(const std::vector<std::string>& names);

  GraphSpec& spec() { return spec_; }
  ValueId id(const std::string& name) const;
  Graph graph() const { return Graph(spec_); }

 private:
  std::vector<ValueId> ids(const std::vector<std::string>& names) const;
  GraphSpec spec_;
};

/// Returns the schedule of a text such as "f1 f2 -a r/b": run f1, run f2, drop a, run r over b.
Schedule steps(const Graph& graph, const std::string& words);

}  // namespace headroom::internal::testing
