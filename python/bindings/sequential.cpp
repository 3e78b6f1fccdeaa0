#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "bindings.h"
#include "headroom/runtime/arena.h"
#include "headroom/runtime/network/side_effects.h"
#include "headroom/runtime/train.h"

namespace headroom::internal {
namespace {

namespace py = pybind11;

/// A stage: its name, a function from a tensor to a tensor, the parameters that it trains, and its buffers.
struct PythonStage {
  std::string name;
  py::function run;
  Tensors parameters;
  Tensors buffers;
};

/// Adds a note to the Python exception that is being handled, if it is one. PyTorch's out-of-memory error becomes C++'s,
/// because measuring handles that.
void annotate_stage_error(const std::string& note) {
  const py::gil_scoped_acquire gil;
  const py::object error = annotate_python_error(note);
  if (error && py::isinstance(error, py::module_::import("torch").attr("OutOfMemoryError")))
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, std::string(py::str(error)) + " (" + note + ")");
}

/// Calls a stage. Python's exceptions pass through unchanged.
at::Tensor call_stage(const py::function& stage, const at::Tensor& input) {
  const py::gil_scoped_acquire gil;
  const py::object result = stage(input);
  return THPVariable_Check(result.ptr()) ? result.cast<at::Tensor>() : at::Tensor();
}

Network make_network(const std::string& name, const std::vector<PythonStage>& stages) {
  Network network(name);
  Wire last = network.add_input("input");
  for (const PythonStage& stage : stages) {
    const auto forward = [held = share(stage.run)](const Tensors& inputs) { return call_stage(*held, inputs[0]); };
    NetworkNode node{stage.name, {last}, forward, stage.parameters, stage.buffers, {}};
    node.annotate_error = annotate_stage_error;
    last = network.add_node(std::move(node));
  }
  network.set_outputs({last});
  return network;
}

/// Runs a function without the GIL. Exceptions of PyTorch and Python become their own Python types; pybind11 converts
/// the others.
template <typename Function>
auto without_gil(Function function) {
  try {
    const py::gil_scoped_release no_gil;
    return function();
  } catch (python_error& error) {
    error.restore();
    throw py::error_already_set();
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
    throw py::error_already_set();
  }
}

/// An OperatorWatch as a context manager.
class KeptMemory {
 public:
  void enter() { watch_ = std::make_unique<OperatorWatch>(); }
  void exit(bool is_failed) {
    const std::unique_ptr<OperatorWatch> watch = std::move(watch_);
    if (!watch) throw InvalidInput("KeptMemory: the context was left without having been entered");
    if (!is_failed) watch->end();
  }
  bool has_read(const at::Tensor& tensor) const { return watch_ && watch_->has_read(tensor); }

 private:
  std::unique_ptr<OperatorWatch> watch_;
};

/// The stages of a network with their costs.
struct MeasuredStages {
  std::shared_ptr<MeasuredStep> measured;
  int64_t store_all_peak_bytes = 0;
};

struct PlannedStages {
  PlannedStep planned;
};

void bind_kept_memory(py::module_& module) {
  /// Restores the memory that operators of this thread write inside the context.
  py::class_<KeptMemory>(module, "KeptMemory")
      .def(py::init<>())
      .def(
          "__enter__",
          [](KeptMemory& memory) -> KeptMemory& {
            memory.enter();
            return memory;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](KeptMemory& memory, const py::args& error) { memory.exit(!error[0].is_none()); })
      .def("has_read", &KeptMemory::has_read);
}

}  // namespace

void bind_sequential(py::module_& module) {
  py::class_<PlannedStages>(module, "PlannedStages")
      .def_property_readonly("predicted_peak_bytes",
                             [](const PlannedStages& stages) { return stages.planned.predicted_peak_bytes; })
      .def_property_readonly("arena", [](const PlannedStages& stages) { return stages.planned.step.arena(); })
      .def("use_arena",
           [](PlannedStages& stages, const torch::Device& device) { stages.planned.step.use_arena(device); })
      .def("run", torch::wrap_pybind_function([](const PlannedStages& stages, const at::Tensor& input) {
             return without_gil([&] { return stages.planned.step({input}); });
           }));

  py::class_<MeasuredStages>(module, "MeasuredStages")
      .def_property_readonly("before_bytes", [](const MeasuredStages& stages) { return stages.measured->before_bytes; })
      .def_readonly("store_all_peak_bytes", &MeasuredStages::store_all_peak_bytes)
      .def_property_readonly("problem", [](const MeasuredStages& stages) { return stages.measured->problem; })
      .def_property_readonly(
          "graph", [](const MeasuredStages& stages) { return std::make_shared<Graph>(stages.measured->step.graph); })
      /// Returns the plan, or the smallest budget if no plan fits; 0 bytes if the planner does not compute it.
      .def("plan",
           [](const MeasuredStages& stages, std::optional<int64_t> budget_bytes, const std::string& planner,
              int64_t later_bytes, bool tries) -> std::variant<PlannedStages, int64_t> {
             TrainOptions options;
             options.planner = budget_bytes ? planner : "store-all";
             options.later_bytes = later_bytes;
             options.tries = tries;
             return without_gil([&]() -> std::variant<PlannedStages, int64_t> {
               try {
                 return PlannedStages{plan_step(*stages.measured, budget_bytes, options)};
               } catch (const BudgetTooSmall& error) {
                 return error.smallest_budget_bytes();
               }
             });
           })
      /// Frees the sample; later plans are not run on it.
      .def("forget_sample", [](const MeasuredStages& stages) { stages.measured->sample.clear(); });

  py::class_<PythonStage>(module, "Stage")
      .def(py::init([](std::string name, py::function run, Tensors parameters, Tensors buffers) {
             return PythonStage{std::move(name), std::move(run), std::move(parameters), std::move(buffers)};
           }),
           py::kw_only(), py::arg("name"), py::arg("run"), py::arg("parameters"), py::arg("buffers"));
  module.def("measure_stages",
             [](const std::string& name, const std::vector<PythonStage>& stages, const at::Tensor& sample) {
               const Network network = make_network(name, stages);
               return without_gil([&] {
                 const auto measured = std::make_shared<MeasuredStep>(measure_step(network, {sample}));
                 const TrainingStep step = make_training_step(*measured, store_all(measured->step.graph));
                 return MeasuredStages{measured, predict(*measured, step).peak_bytes};
               });
             });

  bind_kept_memory(module);
}

}  // namespace headroom::internal
