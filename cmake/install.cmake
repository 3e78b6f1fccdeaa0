# After `cmake --install`, find_package(headroom) gives headroom::core, headroom::io and headroom::plan; built with
# HEADROOM_RUNTIME also headroom::runtime, and it finds Torch, which CMAKE_PREFIX_PATH must lead to.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headroom)
# The public headers. The others are headroom::internal, which tools/surface.py checks.
set(public_headers
  core/chain.h
  core/error.h
  core/graph.h
  core/ids.h
  core/placement.h
  core/schedule.h
  core/simulate.h
  io/file.h
  io/json.h
  io/read.h
  io/size.h
  io/text.h
  plan/plan.h
  plan/planners.h
  plan/problem.h
)
set(public_runtime_headers
  runtime/meter.h
  runtime/network/executor.h
  runtime/network/measure.h
  runtime/network/network.h
  runtime/network/step_graph.h
  runtime/train.h
)
install(TARGETS headroom_core headroom_algorithm headroom_io headroom_plan EXPORT headroom)
install(TARGETS headroom)
if(HEADROOM_RUNTIME)
  install(TARGETS headroom_runtime EXPORT headroom)
  install(TARGETS headroom-train)
  list(APPEND public_headers ${public_runtime_headers})
endif()
foreach(header IN LISTS public_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES headroom/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headroom/${folder})
endforeach()
install(EXPORT headroom NAMESPACE headroom:: FILE headroom-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/headroom-config.cmake.in headroom-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headroom-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headroom-config.cmake ${PROJECT_BINARY_DIR}/headroom-config-version.cmake
        DESTINATION ${package_dir})
