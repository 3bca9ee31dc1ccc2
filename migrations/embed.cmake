# cmake -DOUT=file.c -DSCRIPTS=a.sql;b.sql -P embed.cmake
list(SORT SCRIPTS)
set(arrays "")
set(rows "")
foreach(script IN LISTS SCRIPTS)
  get_filename_component(stem ${script} NAME_WE)
  string(REGEX MATCH "^[0-9]+" number ${stem})
  string(REGEX REPLACE "^0*([0-9])" "\\1" plain ${number})
  file(READ ${script} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const unsigned char text_${number}[] = {${bytes}0};\n")
  string(APPEND rows "    {${plain}, \"${stem}\", (const char *)text_${number}, sizeof text_${number} - 1},\n")
endforeach()
file(WRITE ${OUT} "#include \"migrations/migrations.h\"\n\n${arrays}
static const struct mlo_migration table[] = {\n${rows}};

const struct mlo_migration *mlo_migrations(size_t *count)
{
    *count = sizeof table / sizeof table[0];
    return table;
}
")
