# One idiom for every room: a static library of all .c files in its folder, included from the top
# of the tree ("base/base.h"), with the project's warnings.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

add_library(mlopt_flags INTERFACE)
target_include_directories(mlopt_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_definitions(mlopt_flags INTERFACE _GNU_SOURCE)
# No floating-point contraction: the compiler must not turn a*b+c into an FMA where it likes, since
# results that enter an artifact are promised bit for bit. Kernels that want FMA ask for it by name.
target_compile_options(mlopt_flags INTERFACE
  -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
  -Wno-missing-field-initializers -fno-strict-aliasing -ffp-contract=off -fno-common)
if(MLOPT_WERROR)
  target_compile_options(mlopt_flags INTERFACE -Werror)
endif()
if(MLOPT_SANITIZE)
  target_compile_options(mlopt_flags INTERFACE -fsanitize=${MLOPT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(mlopt_flags INTERFACE -fsanitize=${MLOPT_SANITIZE})
  target_compile_definitions(mlopt_flags INTERFACE MLOPT_SANITIZED=1)
endif()
if(MLOPT_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MLOPT_FUZZ needs clang: configure with --preset fuzz, or -DCMAKE_C_COMPILER=clang")
  endif()
  target_compile_options(mlopt_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(mlopt_flags INTERFACE -fsanitize=address,undefined)
  target_compile_definitions(mlopt_flags INTERFACE MLOPT_SANITIZED=1)
endif()
if(MLOPT_COVERAGE)
  target_compile_options(mlopt_flags INTERFACE --coverage)
  target_link_options(mlopt_flags INTERFACE --coverage)
endif()

# mlopt_room(<name> LINK <targets…> PKG <pkg-config modules…>): the room in the current folder. WITHOUT: a regular
# expression of what in it is a target of its own.
function(mlopt_room name)
  cmake_parse_arguments(ARG "" "WITHOUT" "LINK;PKG;EXTRA" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  if(ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${ARG_WITHOUT}")
  endif()
  add_library(mlopt_${name} STATIC ${sources} ${ARG_EXTRA})
  set_target_properties(mlopt_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(mlopt_${name} PUBLIC mlopt_flags ${ARG_LINK} Threads::Threads m)
  if(ARG_PKG)
    string(MAKE_C_IDENTIFIER "PKG_${name}" prefix)
    pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${ARG_PKG})
    target_link_libraries(mlopt_${name} PUBLIC PkgConfig::${prefix})
  endif()
endfunction()
