#include "sequential.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "headroom/runtime/train.h"

namespace headroom {
namespace {

namespace py = pybind11;

/// One stage: its name, a function from a tensor to a tensor, the parameters that it trains, and its buffers.
using PythonStage = std::tuple<std::string, py::function, Tensors, Tensors>;

Network make_network(const std::string& name, const std::vector<PythonStage>& stages) {
  Network network(name);
  Wire last = network.add_input("input");
  for (const auto& [stage, function, parameters, buffers] : stages) {
    // The function is released with the GIL held.
    const std::shared_ptr<py::function> held(new py::function(function), [](py::function* one) {
      const py::gil_scoped_acquire gil;
      delete one;
    });
    const auto forward = [held](const Tensors& inputs) {
      const py::gil_scoped_acquire gil;
      try {
        return (*held)(inputs[0]).cast<at::Tensor>();
      } catch (const py::error_already_set& error) {
        throw std::runtime_error(error.what());
      }
    };
    last = network.add_node({stage, {last}, forward, parameters, buffers, {}});
  }
  network.set_outputs({last});
  return network;
}

/// Stages with their costs.
struct MeasuredStages {
  std::shared_ptr<MeasuredStep> measured;
  int64_t store_all_peak_bytes = 0;
};

struct PlannedStages {
  PlannedStep planned;
};

}  // namespace

void bind_sequential(py::module_& module) {
  py::class_<PlannedStages>(module, "PlannedStages")
      .def_property_readonly("predicted_peak_bytes",
                             [](const PlannedStages& stages) { return stages.planned.predicted_peak_bytes; })
      .def("run", torch::wrap_pybind_function([](const PlannedStages& stages, const at::Tensor& input) {
             const py::gil_scoped_release no_gil;
             return stages.planned.step({input});
           }));

  py::class_<MeasuredStages>(module, "MeasuredStages")
      .def_property_readonly("before_bytes", [](const MeasuredStages& stages) { return stages.measured->before_bytes; })
      .def_readonly("store_all_peak_bytes", &MeasuredStages::store_all_peak_bytes)
      .def_property_readonly("problem", [](const MeasuredStages& stages) { return stages.measured->problem; })
      .def_property_readonly(
          "graph", [](const MeasuredStages& stages) { return std::make_shared<Graph>(stages.measured->step.graph); })
      /// The plan, or the smallest budget if nothing fits; 0 bytes: the planner does not know.
      .def("plan",
           [](const MeasuredStages& stages, std::optional<int64_t> budget_bytes, const std::string& planner,
              int64_t later_bytes, bool tries) -> std::variant<PlannedStages, int64_t> {
             TrainOptions options;
             options.planner = budget_bytes ? planner : "store-all";
             options.later_bytes = later_bytes;
             options.tries = tries;
             const py::gil_scoped_release no_gil;
             try {
               return PlannedStages{plan_step(*stages.measured, budget_bytes, options)};
             } catch (const BudgetTooSmall& error) {
               return error.smallest_budget_bytes();
             }
           })
      /// Lets go of the sample; plans are not tried any more from then on.
      .def("forget_sample", [](const MeasuredStages& stages) { stages.measured->sample.clear(); });

  module.def("measure_stages",
             [](const std::string& name, const std::vector<PythonStage>& stages, const at::Tensor& sample) {
               const Network network = make_network(name, stages);
               const py::gil_scoped_release no_gil;
               auto measured = std::make_shared<MeasuredStep>(measure_step(network, {sample}));
               TrainOptions options;
               options.planner = "store-all";
               options.tries = false;
               const int64_t peak_bytes = plan_step(*measured, std::nullopt, options).predicted_peak_bytes;
               return MeasuredStages{std::move(measured), peak_bytes};
             });
}

}  // namespace headroom
