# TERSOR_CUDA=ON: the CUDA language for Hopper and the kernels in src/kernels/cuda.
if(NOT TERSOR_CUDA)
  return()
endif()
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/CMakeLists.txt)
  message(FATAL_ERROR "TERSOR_CUDA=ON, but this version has no CUDA kernels (src/kernels/cuda is not there): configure without it")
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a)
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# Not CMAKE_CUDA_STANDARD: CMake 3.25 does not know that nvcc 13 has C++20 and stops.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
add_subdirectory(${PROJECT_SOURCE_DIR}/src/kernels/cuda)
