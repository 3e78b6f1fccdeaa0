#include "headroom/core/simulate.h"

#include <algorithm>

#include "headroom/core/error.h"
#include "headroom/core/memory.h"
#include "headroom/core/quote.h"

namespace headroom {
using namespace internal;
namespace {

[[noreturn]] void throw_too_large(const char* what) {
  throw TooLarge(std::string("the schedule's ") + what + " does not fit 64 bits");
}

std::string describe(const Graph& graph, const Step& step, const Fault& fault) {
  std::string text = step.is_run() ? "run " + quote(graph.op(step.op()).name) : "drop";
  if (fault.value) text += ", value " + quote(graph.value(*fault.value).name);
  return text + ": " + fault.rule;
}

}  // namespace

Simulation simulate(const Graph& graph, const Schedule& schedule) {
  Memory memory(graph);
  Simulation result;
  result.moment_bytes.reserve(schedule.steps.size());
  result.after_bytes.reserve(schedule.steps.size());
  result.peak_bytes = graph.resident_bytes();
  int64_t largest = 0;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (const std::optional<Fault> fault = memory.find_fault(step)) {
      result.error = ScheduleError{i, describe(graph, step, *fault)};
      return result;
    }
    int64_t moment = memory.bytes();
    if (step.is_run()) {
      const std::optional<int64_t> run_moment = memory.find_moment_bytes(step);
      if (!run_moment) throw_too_large("memory");
      moment = *run_moment;
      if (__builtin_add_overflow(result.time_ns, graph.op(step.op()).time_ns, &result.time_ns)) throw_too_large("time");
      if (!result.peak_step || moment > largest) {
        largest = moment;
        result.peak_step = i;
      }
    }
    memory.apply(step);
    result.moment_bytes.push_back(moment);
    result.after_bytes.push_back(memory.bytes());
  }
  if (result.peak_step) result.peak_bytes = std::max(result.peak_bytes, largest);
  for (const ValueId id : graph.outputs()) {
    if (memory.is_alive(id)) continue;
    result.error =
        ScheduleError{schedule.steps.size(), "the step ends without its output, value " + quote(graph.value(id).name)};
    return result;
  }
  return result;
}

std::optional<Simulation> find_simulation(const Graph& graph, const Schedule& schedule) {
  try {
    return simulate(graph, schedule);
  } catch (const TooLarge&) {
    return std::nullopt;
  }
}

std::optional<ScheduleError> verify(const Graph& graph, const Schedule& schedule) {
  return simulate(graph, schedule).error;
}

std::vector<ValueId> alive_during(const Graph& graph, const Schedule& schedule, size_t step) {
  HEADROOM_ASSERT(step < schedule.steps.size());
  Memory memory(graph);
  for (size_t i = 0; i < step; ++i) memory.apply(schedule.steps[i]);
  std::vector<uint8_t> is_present(graph.values().size(), 0);
  for (size_t v = 0; v < is_present.size(); ++v) is_present[v] = graph.values()[v].resident ? 1 : 0;
  const Step& now = schedule.steps[step];
  const Memory::Copy overwritten = now.is_over() ? memory.current_copy(now.value()) : Memory::kNone;
  for (Memory::Copy copy = 0; copy < memory.copy_count(); ++copy)
    if (memory.is_live(copy) && copy != overwritten) is_present[index(memory.value(copy))] = 1;
  if (now.is_run())
    for (const ValueId id : graph.op(now.op()).outputs) is_present[index(id)] = 1;
  std::vector<ValueId> values;
  for (size_t v = 0; v < is_present.size(); ++v)
    if (is_present[v] != 0) values.push_back(value_id(v));
  return values;
}

}  // namespace headroom
