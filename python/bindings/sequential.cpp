#include "sequential.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "headroom/runtime/side_effects.h"
#include "headroom/runtime/train.h"

namespace headroom {
namespace {

namespace py = pybind11;

/// A stage: its name, a function from a tensor to a tensor, the parameters that it trains, and its buffers.
using PythonStage = std::tuple<std::string, py::function, Tensors, Tensors>;

/// Adds a note to the Python exception that is being handled, if it is one.
void add_note(const std::string& note) {
  const py::gil_scoped_acquire gil;
  try {
    throw;
  } catch (python_error& error) {
    error.persist();
    PyErr_Clear();  // The engine leaves Python's error indicator set as well.
    PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
    if (error.value != nullptr) py::handle(error.value).attr("add_note")(note);
  } catch (py::error_already_set& error) {
    error.value().attr("add_note")(note);
  } catch (const std::exception&) {
    // C++ exceptions get their context where they are caught.
  }
}

/// Calls a stage. Python's exceptions pass through unchanged, except for PyTorch's out-of-memory error, which becomes
/// C++'s, because measuring handles that.
at::Tensor call_stage(const py::function& stage, const at::Tensor& input) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object result = stage(input);
    return THPVariable_Check(result.ptr()) ? result.cast<at::Tensor>() : at::Tensor();
  } catch (const py::error_already_set& error) {
    if (!error.matches(py::module_::import("torch").attr("OutOfMemoryError"))) throw;
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, py::str(error.value()).cast<std::string>());
  }
}

Network make_network(const std::string& name, const std::vector<PythonStage>& stages) {
  Network network(name);
  Wire last = network.add_input("input");
  for (const auto& [stage, function, parameters, buffers] : stages) {
    // The function is released with the GIL held.
    const std::shared_ptr<py::function> held(new py::function(function), [](py::function* stage_function) {
      const py::gil_scoped_acquire gil;
      delete stage_function;
    });
    const auto forward = [held](const Tensors& inputs) { return call_stage(*held, inputs[0]); };
    NetworkNode node{stage, {last}, forward, parameters, buffers, {}};
    node.annotate_error = add_note;
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
  void exit() { watch_.reset(); }
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

}  // namespace

void bind_sequential(py::module_& module) {
  py::class_<PlannedStages>(module, "PlannedStages")
      .def_property_readonly("predicted_peak_bytes",
                             [](const PlannedStages& stages) { return stages.planned.predicted_peak_bytes; })
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

  module.def("measure_stages",
             [](const std::string& name, const std::vector<PythonStage>& stages, const at::Tensor& sample) {
               const Network network = make_network(name, stages);
               return without_gil([&] {
                 auto measured = std::make_shared<MeasuredStep>(measure_step(network, {sample}));
                 TrainOptions options;
                 options.planner = "store-all";
                 options.tries = false;
                 const int64_t peak_bytes = plan_step(*measured, std::nullopt, options).predicted_peak_bytes;
                 return MeasuredStages{std::move(measured), peak_bytes};
               });
             });

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
      .def("__exit__", [](KeptMemory& memory, const py::args& /*error*/) { memory.exit(); })
      .def("has_read", &KeptMemory::has_read);
}

}  // namespace headroom
