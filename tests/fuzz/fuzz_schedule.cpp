// Reads any bytes as a schedule of one graph, as JSON and as text. They are refused with InvalidInput, or written and read
// back as an equal schedule, which the simulator takes without a crash.
#include "headroom/core/error.h"
#include "headroom/core/simulate.h"
#include "headroom/io/json.h"
#include "headroom/io/text.h"
#include "tests/fuzz/target.h"

namespace headroom {
namespace {

const Graph& graph() {
  static const Graph kGraph = parse_graph_text(R"(graph g
value x 8 resident
op f1 5: x -> a=4
op r1 5: x -> a t=3
hold t x a
op f2 3 workspace=2 over=a: a -> b=4
op n2 1 workspace=-1: a t -> b u=1
hold u t
op b2 6 backward once: a b t -> c=4
op b1 6 backward: c x -> w=2
outputs b w
)");
  return kGraph;
}

void check(const Schedule& schedule) {
  HEADROOM_ASSERT(read_schedule_json(write_json(graph(), schedule), "", graph()) == schedule);
  HEADROOM_ASSERT(parse_schedule_text(to_text(graph(), schedule), graph()) == schedule);
  const Simulation simulation = simulate(graph(), schedule);
  HEADROOM_ASSERT(simulation.error.has_value() == verify(graph(), schedule).has_value());
  HEADROOM_ASSERT(simulation.peak_bytes >= graph().resident_bytes());
  if (simulation.error || schedule.steps.empty()) return;
  HEADROOM_ASSERT(alive_during(graph(), schedule, schedule.steps.size() - 1).size() >= 3);  // x and both outputs
}

}  // namespace
}  // namespace headroom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headroom;
  const std::string_view input = as_text(data, size);
  unless_invalid([&] { check(read_schedule_json(input, "f", graph())); });
  unless_invalid([&] { check(parse_schedule_text(input, graph(), "f")); });
  return 0;
}
