# Finds MLX's CMake package in its Python wheel: in MLX_ROOT, or else in the checkout's .venv. Defines the target mlx.
set(TERSOR_MLX_VERSION 0.32.4)

# A folder found earlier that is gone (a new .venv, another Python) is looked for again.
if(MLX_ROOT AND NOT EXISTS ${MLX_ROOT}/share/cmake/MLX/MLXConfig.cmake)
  message(WARNING "MLX_ROOT is ${MLX_ROOT}, which holds no MLX; looking in .venv instead")
  set(MLX_ROOT "" CACHE PATH "" FORCE)
endif()
if(NOT MLX_ROOT AND SKBUILD) # pip has put MLX into the environment it builds in
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('mlx.core').origin))"
    OUTPUT_VARIABLE _mlx_folder
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(MLX_ROOT ${_mlx_folder} CACHE PATH "" FORCE)
endif()
if(NOT MLX_ROOT)
  file(GLOB _mlx_folders ${PROJECT_SOURCE_DIR}/.venv/lib*/python3*/site-packages/mlx/share/cmake/MLX/MLXConfig.cmake)
  if(NOT _mlx_folders)
    message(FATAL_ERROR "MLX is not there: run scripts/bootstrap.sh, which installs it into .venv, or give -DMLX_ROOT=…/site-packages/mlx")
  endif()
  list(GET _mlx_folders 0 _mlx_config)
  cmake_path(SET _mlx_folder NORMALIZE ${_mlx_config}/../../../..)
  string(REGEX REPLACE "/$" "" _mlx_folder ${_mlx_folder})
  set(MLX_ROOT ${_mlx_folder} CACHE PATH "" FORCE)
  unset(MLX_DIR CACHE)
endif()
find_package(MLX CONFIG REQUIRED PATHS ${MLX_ROOT} NO_DEFAULT_PATH)
if(NOT MLX_VERSION VERSION_EQUAL TERSOR_MLX_VERSION)
  message(FATAL_ERROR "MLX ${MLX_VERSION} is in ${MLX_ROOT}; Tersor is written for ${TERSOR_MLX_VERSION}: run scripts/bootstrap.sh, or "
                      "pip install mlx==${TERSOR_MLX_VERSION} mlx-cpu==${TERSOR_MLX_VERSION}")
endif()

# MLX's headers are not ours to keep warning-clean.
get_target_property(_mlx_includes mlx INTERFACE_INCLUDE_DIRECTORIES)
set_target_properties(mlx PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_mlx_includes}")
