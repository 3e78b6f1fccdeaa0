# cmake -DBUILD=… -DCOMPILER=… -DGENERATOR=… -P run.cmake: installs BUILD and builds and runs the project in this folder against it.
set(scratch ${BUILD}/install_test)
file(REMOVE_RECURSE ${scratch})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${scratch}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${scratch}/prefix)
run(${CMAKE_COMMAND} --build ${scratch}/build)
run(${scratch}/build/user)
run(${scratch}/prefix/bin/headroom planners)
