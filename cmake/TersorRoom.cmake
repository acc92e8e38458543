# Rooms and their tests. Every room is one static library; sources are taken by pattern, so adding a file is enough.
find_package(Threads REQUIRED)

add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>")

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>") # false alarms on string concatenation, GCC bug 105651
endif()

add_library(tersor_flags INTERFACE)
target_compile_features(tersor_flags INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)
target_include_directories(
  tersor_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                         $<INSTALL_INTERFACE:include>)
if(TERSOR_SANITIZE)
  target_compile_options(tersor_flags INTERFACE -fsanitize=${TERSOR_SANITIZE} -fno-omit-frame-pointer -g -fno-sanitize-recover=all)
  target_link_options(tersor_flags INTERFACE -fsanitize=${TERSOR_SANITIZE})
endif()
set_property(GLOBAL PROPERTY TERSOR_ROOMS tersor_flags)

# tersor_room(NAME [MLX] [USES rooms...] [LIBS targets...]): a library of every source in the caller's own folder.
function(tersor_room name)
  cmake_parse_arguments(ROOM "MLX" "" "USES;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT sources) # a room of headers only
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
    file(TOUCH ${sources})
  endif()
  add_library(tersor_${name} STATIC ${sources})
  target_link_libraries(tersor_${name} PUBLIC tersor_flags)
  foreach(room ${ROOM_USES})
    target_link_libraries(tersor_${name} PUBLIC tersor_${room})
  endforeach()
  if(ROOM_MLX)
    target_link_libraries(tersor_${name} PUBLIC mlx)
  endif()
  target_link_libraries(tersor_${name} PUBLIC ${ROOM_LIBS})
  set_property(GLOBAL APPEND PROPERTY TERSOR_ROOMS tersor_${name})
endfunction()

# What the sanitizers' runtimes are told when a test runs. Everything they find is fatal.
set(TERSOR_TEST_ENVIRONMENT
    "ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1")

# tersor_test(ROOM [USES rooms...]): tests/ROOM/*_test.cpp become one GoogleTest program and one CTest test.
function(tersor_test room)
  cmake_parse_arguments(TEST "" "" "USES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${room} ${sources})
  target_include_directories(test_${room} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(test_${room} PRIVATE tersor_${room} GTest::gtest_main GTest::gmock)
  foreach(use ${TEST_USES})
    target_link_libraries(test_${room} PRIVATE tersor_${use})
  endforeach()
  target_compile_definitions(test_${room} PRIVATE TERSOR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${room} COMMAND test_${room})
  set_tests_properties(${room} PROPERTIES TIMEOUT 900 ENVIRONMENT "${TERSOR_TEST_ENVIRONMENT}")
endfunction()
