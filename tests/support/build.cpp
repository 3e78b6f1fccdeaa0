#include "tests/support/build.h"

#include <sstream>
#include <stdexcept>

namespace headroom::internal::testing {
namespace {

template <typename Items>
size_t find_named(const Items& items, const std::string& name) {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].name == name) return i;
  throw std::out_of_range("no such name: " + name);
}

}  // namespace

Builder& Builder::resident(const std::string& name, int64_t bytes) {
  spec_.values.push_back(Value{name, bytes, true, {}});
  return *this;
}

Builder& Builder::value(const std::string& name, int64_t bytes) {
  spec_.values.push_back(Value{name, bytes, false, {}});
  return *this;
}

Op& Builder::op(const std::string& name, int64_t time_ns, const std::vector<std::string>& inputs,
                const std::vector<std::string>& outputs) {
  Op op{.name = name, .inputs = ids(inputs), .outputs = ids(outputs), .overwrites = {}};
  op.time_ns = time_ns;
  spec_.ops.push_back(std::move(op));
  return spec_.ops.back();
}

Builder& Builder::holds(const std::string& holder, const std::vector<std::string>& held) {
  spec_.values[index(id(holder))].holds = ids(held);
  return *this;
}

Builder& Builder::outputs(const std::vector<std::string>& names) {
  spec_.outputs = ids(names);
  return *this;
}

ValueId Builder::id(const std::string& name) const { return value_id(find_named(spec_.values, name)); }

std::vector<ValueId> Builder::ids(const std::vector<std::string>& names) const {
  std::vector<ValueId> result;
  result.reserve(names.size());
  for (const std::string& name : names) result.push_back(id(name));
  return result;
}

Schedule steps(const Graph& graph, const std::string& words) {
  Schedule schedule;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    const size_t slash = word.find('/');
    if (word[0] == '-') {
      schedule.steps.push_back(Step::drop(value_id(find_named(graph.values(), word.substr(1)))));
    } else if (slash != std::string::npos) {
      schedule.steps.push_back(Step::run_over(op_id(find_named(graph.ops(), word.substr(0, slash))),
                                              value_id(find_named(graph.values(), word.substr(slash + 1)))));
    } else {
      schedule.steps.push_back(Step::run(op_id(find_named(graph.ops(), word))));
    }
  }
  return schedule;
}

}  // namespace headroom::internal::testing
