# Turns text files into a C array {name, text, size}: no tool but CMake.
#   cmake -DOUT=file.c -DSYMBOL=name -DHEADER=header.h "-DFILES=a|b" -P EmbedFiles.cmake
# The generated file includes HEADER, which includes base/embed.h and declares

#   extern const struct mlo_embedded_file SYMBOL[]; extern const size_t SYMBOL_count;
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  string(REPLACE "|" ";" FILES "${FILES}")
  set(body "")
  set(rows "")
  set(n 0)
  foreach(file ${FILES})
    get_filename_component(name ${file} NAME)
    file(READ ${file} hex HEX)
    string(LENGTH "${hex}" length)
    math(EXPR size "${length} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
    string(APPEND body "static const unsigned char file_${n}[] = {\n${bytes}0x00};\n")
    string(APPEND rows "    {\"${name}\", (const char *)file_${n}, ${size}},\n")
    math(EXPR n "${n} + 1")
  endforeach()
  file(WRITE ${OUT} "#include \"${HEADER}\"\n\n${body}\nconst struct mlo_embedded_file ${SYMBOL}[] = {\n${rows}};\nconst size_t ${SYMBOL}_count = ${n};\n")
  return()
endif()

# mlopt_embed(<out .c> <symbol> <header> <files…>): the rule that makes it; again when a file changes.
function(mlopt_embed out symbol header)
  string(REPLACE ";" "|" files "${ARGN}") # a list would be split on its way through the shell
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DSYMBOL=${symbol} -DHEADER=${header} "-DFILES=${files}"
            -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake VERBATIM)
endfunction()
