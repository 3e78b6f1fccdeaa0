#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

namespace headroom::internal {

/// Returns a Python function for owners that release it on any thread, with or without the GIL. One that is released
/// after Python has ended is not freed.
std::shared_ptr<pybind11::function> share(const pybind11::function& function);

/// Adds a note to the exception that is being handled, if it is Python's, and returns it; otherwise returns null. The
/// caller must hold the GIL.
pybind11::object annotate_python_error(const std::string& note);

/// Adds arenas, in which steps run.
void bind_arenas(pybind11::module_& module);

/// Adds what headroom.Sequential needs: stages in Python, measured, planned and run by the executor of modules.
void bind_sequential(pybind11::module_& module);

}  // namespace headroom::internal
