/* YAML text as a small tree that remembers lines. Read by libyaml; anchors, aliases, tags and several
 * documents are refused: recipes and policies need none of them, and aliases are how a short file becomes an
 * endless one. */
#ifndef MLO_BASE_YAML_H
#define MLO_BASE_YAML_H

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"

enum mlo_yaml_kind { MLO_YAML_SCALAR, MLO_YAML_LIST, MLO_YAML_MAP };

struct mlo_yaml {
    enum mlo_yaml_kind kind;
    int line;         /* from 1 */
    const char *text; /* scalar */
    bool quoted;      /* scalar in quotes: always a string */
    const char *key;  /* of this member, when its parent is a map */
    int key_line;
    struct mlo_yaml *first, *next; /* members in order */
    size_t count;
};

/* Parses one document into the arena. `name` stands for the file in errors. Duplicate keys are errors. */
MLO_MUST_USE enum mlo_status mlo_yaml_parse(struct mlo_arena *arena, const char *text, size_t size,
                                            const char *name, struct mlo_yaml **out, struct mlo_error *err);
/* The member of a map; NULL when absent or not a map. */
const struct mlo_yaml *mlo_yaml_get(const struct mlo_yaml *map, const char *key);
/* The tree as JSON: plain scalars by YAML's core schema (null, booleans, integers, finite reals), the rest
 * strings. A new reference; NULL when out of memory. */
json_t *mlo_yaml_to_json(const struct mlo_yaml *node);

#endif
