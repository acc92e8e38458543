# cmake --install: the command, the libraries, the public headers, and a package for find_package(tersor).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# What a C++ application links: every room that has a public header.
add_library(tersor_lib INTERFACE)
target_link_libraries(tersor_lib INTERFACE tersor_model tersor_cache tersor_ops tersor_codec tersor_text tersor_base)
set_target_properties(tersor_lib PROPERTIES EXPORT_NAME tersor)
add_library(tersor::tersor ALIAS tersor_lib)

get_property(_rooms GLOBAL PROPERTY TERSOR_ROOMS)
install(TARGETS tersor_lib ${_rooms} EXPORT tersor ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tersor DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tersor NAMESPACE tersor:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tersor)
configure_package_config_file(cmake/tersorConfig.cmake.in ${CMAKE_BINARY_DIR}/tersorConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tersor)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tersorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tersorConfig.cmake ${CMAKE_BINARY_DIR}/tersorConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tersor)

# MLX's library stays where it is; the command finds it there.
set_target_properties(tersor PROPERTIES INSTALL_RPATH ${MLX_ROOT}/lib)
install(TARGETS tersor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
