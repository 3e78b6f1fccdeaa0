#include "headroom/runtime/arena.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "bindings.h"
#include "headroom/plan/place/arena_peak.h"

namespace headroom::internal {
namespace {

namespace py = pybind11;

/// The scope of a half as a context manager. It is left on the thread on which it was entered.
class HalfContext {
 public:
  HalfContext(std::shared_ptr<ArenaRun> run, Half half) : run_(std::move(run)), half_(half) {}
  void enter() { scope_ = std::make_unique<ArenaScope>(run_.get(), half_); }
  void exit() { scope_.reset(); }

 private:
  std::shared_ptr<ArenaRun> run_;
  Half half_;
  std::unique_ptr<ArenaScope> scope_;
};

}  // namespace

void bind_arenas(pybind11::module_& module) {
  py::class_<HalfContext>(module, "HalfContext")
      .def("__enter__", &HalfContext::enter)
      .def("__exit__", [](HalfContext& context, const py::args&) { context.exit(); });
  py::class_<ArenaRun, std::shared_ptr<ArenaRun>>(module, "ArenaRun")
      .def("forward", [](const std::shared_ptr<ArenaRun>& run) { return HalfContext(run, Half::kForward); })
      .def("backward", [](const std::shared_ptr<ArenaRun>& run) { return HalfContext(run, Half::kBackward); })
      .def("finish", &ArenaRun::finish, py::call_guard<py::gil_scoped_release>());
  py::class_<ArenaMemory>(module, "ArenaMemory")
      .def_readonly("block_bytes", &ArenaMemory::block_bytes)
      .def_readonly("forward_peak_bytes", &ArenaMemory::forward_peak_bytes)
      .def_readonly("forward_left_bytes", &ArenaMemory::forward_left_bytes)
      .def_readonly("backward_peak_bytes", &ArenaMemory::backward_peak_bytes)
      .def("__eq__", [](const ArenaMemory& memory, const py::object& other) {
        return py::isinstance<ArenaMemory>(other) && memory == other.cast<const ArenaMemory&>();
      });
  py::class_<ArenaStatistics>(module, "ArenaStatistics")
      .def_readonly("block_bytes", &ArenaStatistics::block_bytes)
      .def_readonly("served", &ArenaStatistics::served)
      .def_readonly("native", &ArenaStatistics::native)
      .def_readonly("missed", &ArenaStatistics::missed)
      .def_readonly("recordings", &ArenaStatistics::recordings)
      .def_readonly("bad_in_row", &ArenaStatistics::bad_in_row)
      .def_readonly("overtaken", &ArenaStatistics::overtaken);
  py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena")
      .def(py::init([](const torch::Device& device) { return std::make_shared<Arena>(device); }))
      .def("begin", &Arena::begin)
      .def("memory", &Arena::memory)
      .def("statistics", &Arena::statistics);
  /// Returns the peak of a schedule whose step runs in an arena. `call_of_op` is that of OpProgram.
  module.def(
      "arena_peak_bytes",
      [](const Graph& graph, const Schedule& schedule, const std::vector<int>& call_of_op, int64_t alignment) {
        std::vector<bool> is_outside;
        for (const int call : call_of_op) is_outside.push_back(call < 0);
        return find_arena_peak(graph, schedule, is_outside, alignment).peak_bytes;
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace headroom::internal
