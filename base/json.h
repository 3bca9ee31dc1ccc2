/* JSON helpers over jansson: strict parsing, canonical text, typed getters with precise errors.
 *
 * Canonical text follows RFC 8785 (JCS) for what mlopt stores: UTF-8, object keys sorted by their
 * bytes, no white space, integers as integers, reals by the shortest text that reads back to the same
 * double. Digests and derivation keys are taken over it. */
#ifndef MLO_BASE_JSON_H
#define MLO_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"

/* Strict: duplicate keys are refused, depth is bounded by jansson, one value only. *out is yours
 * (json_decref). `where` names the source in errors ("request body"). */
MLO_MUST_USE enum mlo_status mlo_json_parse(const char *text, size_t size, const char *where, json_t **out,
                                            struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_json_load_file(const char *path, json_t **out, struct mlo_error *err);
/* Writes indented text, atomically (temporary file, fsync, rename). */
MLO_MUST_USE enum mlo_status mlo_json_save_file(const json_t *value, const char *path, struct mlo_error *err);

/* Appends the canonical text of `value`. NaN and infinities cannot occur (jansson refuses them). */
void mlo_json_canonical(const json_t *value, struct mlo_buf *out);
/* SHA-256 of the canonical text. */
MLO_MUST_USE enum mlo_status mlo_json_digest(const json_t *value, struct mlo_digest *out,
                                             struct mlo_error *err);

/* Getters: the member `key` of `object`. With a NULL `fallback` pointer (or required = true) an absent
 * member is an error; a member of another type is always one. Returned strings are borrowed. */
MLO_MUST_USE enum mlo_status mlo_json_get_str(const json_t *object, const char *key, const char *fallback,
                                              const char **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_json_get_i64(const json_t *object, const char *key, const int64_t *fallback,
                                              int64_t *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_json_get_f64(const json_t *object, const char *key, const double *fallback,
                                              double *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_json_get_bool(const json_t *object, const char *key, const bool *fallback,
                                               bool *out, struct mlo_error *err);

/* Shorthands for reading what mlopt itself wrote: the default when absent or of another type. */
const char *mlo_json_str(const json_t *object, const char *key, const char *fallback);
int64_t mlo_json_i64(const json_t *object, const char *key, int64_t fallback);
double mlo_json_f64(const json_t *object, const char *key, double fallback);
bool mlo_json_bool(const json_t *object, const char *key, bool fallback);

/* The number, or null where JSON has none: for NaN and infinities. Yours; NULL: out of memory. */
json_t *mlo_json_finite(double number);

#endif
