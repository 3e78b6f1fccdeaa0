# cmake -DBUILD=… -DCOMPILER=… -DGENERATOR=… [-DTORCH=…] -P run.cmake: installs BUILD and builds and runs the project in
# this folder against it. TORCH, where the runtime was built, is the folder of its torch's package; then also
# examples/cmake_project.
set(scratch ${BUILD}/install_test)
file(REMOVE_RECURSE ${scratch})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix)
function(build folder name)
  run(${CMAKE_COMMAND} -S ${folder} -B ${scratch}/${name} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Debug
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${scratch}/prefix -DTorch_DIR=${TORCH}
      -DHEADROOM_INCLUDE=${scratch}/prefix/include)
  run(${CMAKE_COMMAND} --build ${scratch}/${name})
endfunction()
build(${CMAKE_CURRENT_LIST_DIR} build)
run(${scratch}/build/user)
run(${scratch}/prefix/bin/headroom planners)
if(TORCH)
  build(${CMAKE_CURRENT_LIST_DIR}/../../examples/cmake_project example)
  run(${scratch}/example/train_my_network)
  execute_process(COMMAND ${scratch}/example/train_my_network 1MB RESULT_VARIABLE status)
  if(NOT status EQUAL 1)
    message(FATAL_ERROR "a budget that is too small: expected status 1, found ${status}")
  endif()
  run(${scratch}/prefix/bin/headroom-train gpt-tiny --batch 2 --budget 0.8x)
endif()
