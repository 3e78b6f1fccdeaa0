// The C++ side as the module headroom._C. Python objects are converted to plain values only in this module.
#include "bindings.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include <array>
#include <cstring>
#include <unordered_set>

#include "headroom/core/simulate.h"
#include "headroom/io/json.h"
#include "headroom/io/size.h"
#include "headroom/plan/planners.h"
#include "headroom/report/data.h"
#include "headroom/report/page.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/ops/op_program.h"

namespace headroom::internal {
namespace {

namespace py = pybind11;

/// Returns the limits of planning while a first call waits. `auto` proves plans of small graphs by a search over all
/// schedules, which takes seconds at its default limit and hardly ever changes the plan.
PlanLimits limits_of(const Planner& planner, bool keep_order) {
  constexpr int64_t kMaxProofStates = 20'000;
  PlanLimits limits;
  if (&planner == &default_planner()) limits.max_states = kMaxProofStates;
  limits.keep_order = keep_order;
  return limits;
}

/// A tensor of the program as an argument of a call.
struct TensorReference {
  int number = -1;
  bool is_updated = false;
};

CallArgument to_argument(const py::handle& given, const c10::Argument& argument) {
  if (py::isinstance<TensorReference>(given)) {
    const auto reference = given.cast<TensorReference>();
    return {CallArgument::Kind::kTensor, {}, {reference.number}, reference.is_updated};
  }
  const bool is_sequence = py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given);
  const auto is_reference = [](const py::handle& one) { return py::isinstance<TensorReference>(one); };
  if (is_sequence && std::any_of(given.begin(), given.end(), is_reference)) {
    CallArgument list{CallArgument::Kind::kTensors, {}, {}};
    for (const py::handle& one : given) {
      if (one.is_none()) list.kind = CallArgument::Kind::kOptionalTensors;
      TORCH_CHECK(one.is_none() || is_reference(one), "constants among the tensors of \"", argument.name(),
                  "\" cannot be planned");
      list.tensors.push_back(one.is_none() ? -1 : one.cast<TensorReference>().number);
    }
    const c10::TypePtr type = argument.type()->cast<c10::ListType>()
                                  ? argument.type()->cast<c10::ListType>()->getElementType()
                                  : c10::TypePtr(c10::TensorType::get());
    if (type->kind() == c10::TypeKind::OptionalType) list.kind = CallArgument::Kind::kOptionalTensors;
    return list;
  }
  const bool is_number =
      py::isinstance<py::float_>(given) || py::isinstance<py::int_>(given) || PyComplex_Check(given.ptr());
  if (is_number && argument.type()->kind() == c10::TypeKind::TensorType) {
    // As in Python's operators, a number takes part in an operation without changing its type. Its memory is not
    // counted by any meter, because it is live as long as the program, for any budget.
    const torch::Tensor made = at::scalar_to_tensor(torch::jit::toIValue(given, c10::NumberType::get()).toScalar());
    const auto bytes = std::make_shared<std::array<char, sizeof(c10::complex<double>)>>();
    std::memcpy(bytes->data(), made.const_data_ptr(), made.nbytes());
    torch::Tensor number = at::from_blob(
        bytes->data(), {}, [bytes](void*) {}, made.options());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return {CallArgument::Kind::kConstant, number, {}};
  }
  return {CallArgument::Kind::kConstant, torch::jit::toIValue(given, argument.type()), {}};
}

/// Returns an operator's function. An exception of an operator written in Python is cleared from the thread at once,
/// since Python code that runs while the stack unwinds must not see it.
std::function<void(torch::jit::Stack&)> boxed(const c10::OperatorHandle& op) {
  return [op](torch::jit::Stack& stack) {
    try {
      op.callBoxed(stack);
    } catch (python_error& error) {
      error.persist();
      throw;
    }
  };
}

/// Returns a call of an operator. `in_place` has the name and overload of the operator that writes its result over the
/// first argument, and takes that argument once more at the end if it writes to an `out` argument; empty for none.
OpCall make_call(const std::string& name, const std::string& overload, const py::list& arguments,
                 std::vector<int> results, bool draws, const std::pair<std::string, std::string>& in_place,
                 std::string source) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  OpCall call;
  call.name = overload.empty() ? name : name + "." + overload;
  call.source = std::move(source);
  call.run = boxed(op);
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  if (!in_place.first.empty()) {
    const c10::OperatorHandle other =
        c10::Dispatcher::singleton().findSchemaOrThrow(in_place.first.c_str(), in_place.second.c_str());
    const bool takes_out = other.schema().arguments().size() > schema.size();
    call.run_in_place = [run = boxed(other), takes_out](torch::jit::Stack& stack) {
      if (takes_out) stack.push_back(stack[0]);
      run(stack);
    };
  }
  TORCH_CHECK(arguments.size() == schema.size(), call.name, " takes ", schema.size(), " arguments");
  for (size_t i = 0; i < schema.size(); ++i) call.arguments.push_back(to_argument(arguments[i], schema[i]));
  call.results = std::move(results);
  call.draws = draws;
  return call;
}

/// Returns a call of a Python function, for a call that is no operator. `arguments` are tensors; `function` contains
/// everything else that it needs.
OpCall make_python_call(const std::string& name, const py::function& function, const std::vector<int>& arguments,
                        std::vector<int> results, bool draws, std::string source) {
  OpCall call;
  call.name = name;
  call.source = std::move(source);
  const size_t count = arguments.size();
  call.run = [held = share(function), count](torch::jit::Stack& stack) {
    const py::gil_scoped_acquire gil;
    py::tuple inputs(count);
    for (size_t i = 0; i < count; ++i) inputs[i] = torch::jit::toPyObject(std::move(stack[i]));
    stack.clear();
    for (const py::handle& one : (*held)(*inputs))
      stack.emplace_back(one.is_none() ? at::Tensor() : one.cast<at::Tensor>());
  };
  for (const int number : arguments) call.arguments.push_back({CallArgument::Kind::kTensor, {}, {number}});
  call.results = std::move(results);
  call.draws = draws;
  return call;
}

/// A handle with which Python keeps a frame.
struct FrameHandle {
  std::shared_ptr<OpFrame> frame;  ///< None after backward.
};

/// Converts ids to Python's numbers and back.
template <typename Id>
std::vector<int> to_numbers(const std::vector<Id>& ids) {
  std::vector<int> numbers;
  for (const Id id : ids) numbers.push_back(static_cast<int>(id));
  return numbers;
}

std::vector<ValueId> to_values(const std::vector<int>& numbers) {
  std::vector<ValueId> ids;
  for (const int number : numbers) ids.push_back(static_cast<ValueId>(number));
  return ids;
}

}  // namespace

std::shared_ptr<py::function> share(const py::function& function) {
  return {new py::function(function), [](py::function* shared) {
            if (Py_IsInitialized() == 0) return;  // Python's objects are gone, and no thread can have the GIL.
            const py::gil_scoped_acquire gil;
            delete shared;
          }};
}

py::object annotate_python_error(const std::string& note) {
  py::object value;
  try {
    throw;
  } catch (python_error& error) {
    error.persist();
    PyErr_Clear();  // The engine leaves Python's error indicator set as well.
    PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
    value = py::reinterpret_borrow<py::object>(error.value);
  } catch (const py::error_already_set& error) {
    value = error.value();
  } catch (const std::exception&) {
    return {};  // C++'s exceptions get their context where they are caught.
  }
  if (!value) return value;
  try {
    value.attr("add_note")(note);
  } catch (const py::error_already_set&) {
    // An exception that takes no notes is thrown without one.
  }
  return value;
}

}  // namespace headroom::internal

/// `empty_like(x).bernoulli_(p)` as one operator without side effects.
TORCH_LIBRARY_FRAGMENT(headroom, library) {
  library.def("bernoulli_like(Tensor like, float p) -> Tensor", {at::Tag::nondeterministic_seeded});
  library.impl("bernoulli_like", c10::DispatchKey::CompositeExplicitAutograd,
               [](const at::Tensor& like, double p) { return at::empty_like(like).bernoulli_(p); });
}

namespace headroom::internal {
namespace {

namespace py = pybind11;

void bind_memory(py::module_& module) {
  module.def("parse_bytes", &parse_bytes);
  module.def("parse_budget", &parse_budget);
  module.def("format_bytes", &format_bytes);
  module.def("allocated_bytes",
             [](int64_t bytes, const torch::Device& device) { return allocated_bytes(bytes, device); });
  /// Returns the bytes of the tensors' storages, each counted once. It uses no Python objects of storages, which would
  /// then hold the storages.
  module.def("storage_bytes", [](const std::vector<std::optional<at::Tensor>>& tensors) {
    int64_t bytes = 0;
    std::unordered_set<const c10::StorageImpl*> seen;
    for (const std::optional<at::Tensor>& tensor : tensors)
      if (tensor && tensor->has_storage() && seen.insert(tensor->storage().unsafeGetStorageImpl()).second)
        bytes += allocated_bytes(static_cast<int64_t>(tensor->storage().nbytes()), tensor->device());
    return bytes;
  });
  py::class_<Meter>(module, "Meter")
      .def(py::init<torch::Device>())
      .def("current_bytes", &Meter::current_bytes)
      .def("peak_bytes", &Meter::peak_bytes)
      .def("reset_peak", &Meter::reset_peak);
}

void bind_calls(py::module_& module) {
  py::class_<TensorReference>(module, "TensorReference").def(py::init([](int number, bool is_updated) {
    return TensorReference{number, is_updated};
  }));
  static_cast<void>(py::class_<OpCall>(module, "OpCall"));
  module.def("make_call", &make_call, py::arg("name"), py::arg("overload"), py::arg("arguments"), py::arg("results"),
             py::arg("draws"), py::arg("in_place"), py::arg("source") = "");
  module.def("make_python_call", &make_python_call, py::arg("name"), py::arg("function"), py::arg("arguments"),
             py::arg("results"), py::arg("draws"), py::arg("source") = "");
}

void bind_graphs(py::module_& module) {
  py::class_<Value>(module, "Value")
      .def(py::init([](std::string name, int64_t bytes, bool resident, const std::vector<int>& holds) {
             return Value{std::move(name), bytes, resident, to_values(holds)};
           }),
           py::arg("name"), py::arg("bytes"), py::arg("resident") = false, py::arg("holds") = std::vector<int>());
  py::class_<Op>(module, "Op")
      .def(py::init([](std::string name, bool is_backward, const std::vector<int>& inputs,
                       const std::vector<int>& outputs, int64_t time_ns, int64_t workspace_bytes, bool recompute,
                       const std::vector<int>& overwrites) {
             Op op{.name = std::move(name),
                   .phase = is_backward ? Phase::kBackward : Phase::kForward,
                   .inputs = to_values(inputs),
                   .outputs = to_values(outputs),
                   .overwrites = to_values(overwrites)};
             op.time_ns = time_ns;
             op.workspace_bytes = workspace_bytes;
             op.recompute = recompute;
             return op;
           }),
           py::kw_only(), py::arg("name"), py::arg("is_backward"), py::arg("inputs"), py::arg("outputs"),
           py::arg("time_ns") = 0, py::arg("workspace_bytes") = 0, py::arg("recompute") = false,
           py::arg("overwrites") = std::vector<int>())
      .def_property_readonly("inputs", [](const Op& op) { return to_numbers(op.inputs); })
      .def_property_readonly("outputs", [](const Op& op) { return to_numbers(op.outputs); });
  py::class_<Graph, std::shared_ptr<Graph>>(module, "Graph")
      .def(py::init(
          [](std::string name, std::vector<Value> values, std::vector<Op> ops, const std::vector<int>& outputs) {
            GraphSpec spec{.name = std::move(name), .values = std::move(values), .ops = std::move(ops), .outputs = {}};
            spec.outputs = to_values(outputs);
            return std::make_shared<Graph>(std::move(spec));
          }))
      .def("resident_bytes", &Graph::resident_bytes)
      .def("op_count", [](const Graph& graph) { return graph.ops().size(); })
      .def("op_name", [](const Graph& graph, int op) { return graph.op(static_cast<OpId>(op)).name; })
      .def("value_name", [](const Graph& graph, int value) { return graph.value(static_cast<ValueId>(value)).name; })
      .def("value_bytes", [](const Graph& graph, int value) { return graph.value(static_cast<ValueId>(value)).bytes; })
      .def("op_inputs", [](const Graph& graph, int op) { return to_numbers(graph.op(static_cast<OpId>(op)).inputs); })
      .def("to_json", [](const Graph& graph) { return write_json(graph); });

  py::class_<Step>(module, "Step")
      .def_property_readonly("is_run", &Step::is_run)
      .def_property_readonly("op", [](const Step& step) { return static_cast<int>(step.op()); })
      .def_property_readonly("value", [](const Step& step) { return static_cast<int>(step.value()); });
  py::class_<Schedule>(module, "Schedule")
      .def_property_readonly("steps", [](const Schedule& schedule) { return schedule.steps; })
      .def("to_json", [](const Schedule& schedule, const Graph& graph) { return write_json(graph, schedule); });
  module.def("store_all", &store_all);
  module.def(
      "with_drops",
      [](const Graph& graph, const std::vector<int>& runs) {
        std::vector<OpId> ops;
        for (const int op : runs) ops.push_back(static_cast<OpId>(op));
        return with_drops(graph, ops);
      },
      py::arg("graph"), py::arg("runs"));
}

void bind_simulation(py::module_& module) {
  py::class_<Simulation>(module, "Simulation")
      .def_readonly("peak_bytes", &Simulation::peak_bytes)
      .def_readonly("time_ns", &Simulation::time_ns)
      .def_readonly("moment_bytes", &Simulation::moment_bytes)
      .def_readonly("after_bytes", &Simulation::after_bytes)
      .def_property_readonly("peak_step", [](const Simulation& simulation) {
        return simulation.peak_step ? static_cast<int64_t>(*simulation.peak_step) : -1;
      });
  /// Throws where the schedule is invalid for the graph, because the numbers would be those of its first steps only.
  module.def(
      "simulate",
      [](const Graph& graph, const Schedule& schedule) {
        Simulation simulation = simulate(graph, schedule);
        if (simulation.error)
          throw InvalidInput("the schedule is invalid at step " + std::to_string(simulation.error->step) + ": " +
                             simulation.error->message);
        return simulation;
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "is_valid", [](const Graph& graph, const Schedule& schedule) { return !verify(graph, schedule); },
      py::call_guard<py::gil_scoped_release>());
  module.def("alive_during", [](const Graph& graph, const Schedule& schedule, size_t step) {
    return to_numbers(alive_during(graph, schedule, step));
  });
}

void bind_planning(py::module_& module) {
  module.def("planner_names", [] {
    std::vector<std::string> names;
    for (const Planner& planner : planners()) names.emplace_back(planner.name);
    return names;
  });

  py::class_<Problem>(module, "Problem").def(py::init([](const Graph& graph) { return Problem(graph); }));

  py::class_<Plan>(module, "Plan")
      .def_property_readonly("status", [](const Plan& plan) { return std::string(name_of(plan.result.status)); })
      .def_property_readonly("schedule", [](const Plan& plan) { return plan.result.schedule; })
      .def_readonly("peak_bytes", &Plan::peak_bytes)
      .def_readonly("time_ns", &Plan::time_ns)
      .def_readonly("base_time_ns", &Plan::base_time_ns)
      .def_readonly("solve_ms", &Plan::solve_ms)
      .def_property_readonly("lower_bound_ns", [](const Plan& plan) { return plan.result.lower_bound_ns; })
      .def_property_readonly("smallest_budget_bytes",
                             [](const Plan& plan) { return plan.result.smallest_budget_bytes; });
  module.def(
      "make_plan",
      [](const Problem& problem, const std::string& planner, std::optional<int64_t> budget_bytes, bool keep_order) {
        const Planner& entry = get_planner(planner);
        return make_plan(entry, problem, {budget_bytes, limits_of(entry, keep_order)});
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("find_plan_without_reruns", &find_plan_without_reruns, py::call_guard<py::gil_scoped_release>());
  py::class_<CurvePoint>(module, "CurvePoint")
      .def_readonly("peak_bytes", &CurvePoint::peak_bytes)
      .def_readonly("time_ns", &CurvePoint::time_ns);
  module.def(
      "plan_curve",
      [](const Problem& problem, const std::string& planner, int points, bool keep_order) {
        const Planner& entry = get_planner(planner);
        return plan_curve(entry, problem, points, {std::nullopt, limits_of(entry, keep_order)});
      },
      py::call_guard<py::gil_scoped_release>());
}

void bind_report(py::module_& module) {
  module.def(
      "make_report",
      [](const Problem& problem, const Plan& plan, const std::string& planner, std::optional<int64_t> budget_bytes,
         bool keep_order, std::vector<std::string> modules, std::vector<std::string> sources) {
        ReportInput input{problem.graph, plan.result.schedule.value()};
        input.budget_bytes = budget_bytes;
        input.planner = planner;
        input.status = std::string(name_of(plan.result.status));
        input.modules = std::move(modules);
        input.sources = std::move(sources);
        make_report_page("");  // A missing page is reported before planning.
        input.fronts = make_report_fronts(problem, limits_of(default_planner(), keep_order));
        return make_report_page(write_report_data(input));
      },
      py::call_guard<py::gil_scoped_release>());
}

void bind_programs(py::module_& module) {
  py::class_<OpProgram, std::shared_ptr<OpProgram>>(module, "OpProgram")
      .def(py::init([](const Graph& graph, std::vector<OpCall> calls, std::vector<int> call_of_op,
                       std::vector<int> call_of_view, std::vector<int> value_of_tensor, std::vector<int> forward_inputs,
                       std::vector<int> backward_inputs, std::vector<int> forward_outputs,
                       std::vector<int> backward_outputs, torch::Device device) {
             return std::make_shared<OpProgram>(OpProgram{
                 graph, std::move(calls), std::move(call_of_op), std::move(call_of_view), std::move(value_of_tensor),
                 std::move(forward_inputs), std::move(backward_inputs), std::move(forward_outputs),
                 std::move(backward_outputs), device, [](const std::string& note) {
                   const py::gil_scoped_acquire gil;
                   annotate_python_error(note);
                 }});
           }),
           py::kw_only(), py::arg("graph"), py::arg("calls"), py::arg("call_of_op"), py::arg("call_of_view"),
           py::arg("value_of_tensor"), py::arg("forward_inputs"), py::arg("backward_inputs"),
           py::arg("forward_outputs"), py::arg("backward_outputs"), py::arg("device"));

  static_cast<void>(py::class_<FrameHandle>(module, "Frame"));
  py::class_<OpStep, std::shared_ptr<OpStep>>(module, "OpStep")
      .def(py::init([](const std::shared_ptr<OpProgram>& program, const Schedule& schedule) {
        return std::make_shared<OpStep>(program, schedule);
      }))
      .def("forward",
           torch::wrap_pybind_function(
               [](const OpStep& step, const py::list& inputs, const std::shared_ptr<Arena>& arena) {
                 Tensors tensors;
                 for (const py::handle& one : inputs)
                   tensors.push_back(THPVariable_Check(one.ptr()) ? one.cast<at::Tensor>() : at::Tensor());
                 inputs.attr("clear")();
                 OpStep::Forward made;
                 {
                   const py::gil_scoped_release no_gil;
                   made = step.forward(std::move(tensors), arena);
                 }
                 return std::pair(std::move(made.outputs), FrameHandle{std::move(made.frame)});
               }),
           py::arg("inputs"), py::arg("arena") = nullptr)
      .def("watch",
           torch::wrap_pybind_function([](const OpStep& step, const FrameHandle& handle, const Tensors& results) {
             if (handle.frame) step.watch(*handle.frame, results);
           }))
      .def("backward",
           torch::wrap_pybind_function([](const OpStep& step, FrameHandle& handle, const py::list& gradients) {
             Tensors tensors;
             for (const py::handle& one : gradients)
               tensors.push_back(one.is_none() ? at::Tensor() : one.cast<at::Tensor>());
             gradients.attr("clear")();
             OpStep::Backward made;
             {
               const py::gil_scoped_release no_gil;
               made = step.backward(handle.frame, std::move(tensors));
             }
             return std::pair(std::move(made.gradients), made.is_held);
           }));
}

}  // namespace
}  // namespace headroom::internal

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace headroom;
  using namespace headroom::internal;
  module.attr("torch_version") = TORCH_VERSION;
  pybind11::register_exception<InvalidInput>(module, "InvalidInput", PyExc_ValueError);
  bind_memory(module);
  bind_arenas(module);
  bind_calls(module);
  bind_graphs(module);
  bind_simulation(module);
  bind_planning(module);
  bind_report(module);
  bind_programs(module);
  bind_sequential(module);
}
