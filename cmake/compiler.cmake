# Warnings, sanitizers and ccache, for everything below the top folder.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion)
  # g++ 12 sees overlapping copies in std::string's operator+ at -O3 where there are none (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    add_compile_options(-Wno-restrict)
  endif()
  find_program(HEADROOM_CCACHE ccache)
  if(HEADROOM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Paths below this folder do not count, so that every clone and worktree shares what another one has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true
        ${HEADROOM_CCACHE})
  endif()
endif()
if(HEADROOM_WARNINGS_AS_ERRORS)
  add_compile_options(-Werror)
endif()

if(HEADROOM_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(HEADROOM_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
elseif(NOT HEADROOM_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HEADROOM_SANITIZE is '${HEADROOM_SANITIZE}', expected address, thread or nothing")
endif()
if(sanitize)
  add_compile_options(${sanitize} -fno-omit-frame-pointer)
  add_link_options(${sanitize})
endif()

if(HEADROOM_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "HEADROOM_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID}")
endif()
