# After `cmake --install`, find_package(headroom) gives headroom::core, headroom::algorithm, headroom::io and headroom::plan;
# built with HEADROOM_RUNTIME also headroom::runtime and headroom::zoo, and it finds Torch, which CMAKE_PREFIX_PATH must
# lead to.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headroom)
install(TARGETS headroom_core headroom_algorithm headroom_io headroom_plan EXPORT headroom)
install(TARGETS headroom)
install(DIRECTORY headroom/core DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headroom FILES_MATCHING PATTERN "*.h")
# The public headers of the rest; tests/install includes them all. Other headers are internal.
install(FILES headroom/io/file.h headroom/io/json.h headroom/io/read.h headroom/io/size.h headroom/io/text.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headroom/io)
install(FILES headroom/plan/plan.h headroom/plan/planners.h headroom/plan/problem.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headroom/plan)
if(HEADROOM_RUNTIME)
  install(TARGETS headroom_runtime headroom_zoo EXPORT headroom)
  install(TARGETS headroom-train)
  install(DIRECTORY headroom/runtime headroom/zoo
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headroom FILES_MATCHING PATTERN "*.h")
endif()
install(EXPORT headroom NAMESPACE headroom:: FILE headroom-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/headroom-config.cmake.in headroom-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headroom-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headroom-config.cmake ${PROJECT_BINARY_DIR}/headroom-config-version.cmake
        DESTINATION ${package_dir})
