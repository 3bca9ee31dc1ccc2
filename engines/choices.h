/* What a tuner found: which of the ways to compute a step was the fastest on a device. One document holds the
 * steps of any number of plans, and grows:
 *
 *   {"format":"mlopt-choices-1", "machine":{"engine","target","gpu","multiprocessors","driver","libraries",
 *    "generator"…}, "steps":{KEY: {"choice":{…}, "by":"measured"|"only", "ways": how many there were,
 *    "dropped":[{"choice","why"}], "us":{"value","low","high","n"}, "heuristic":{"choice","us":{…}},
 *    "error","tolerance", "nodes":[names]}}}
 *
 * KEY is the SHA-256 of the step's canonical text: what it computes, with shapes, strides and types, but no
 * names, so that the same layer of another model has the same key. `choice` means something to the engine
 * only. All steps of a document were measured on what "machine" says; where any of that differs it is another
 * document. */
#ifndef MLO_ENGINES_CHOICES_H
#define MLO_ENGINES_CHOICES_H

#include "base/base.h"

#define MLO_CHOICES_FORMAT "mlopt-choices-1"

/* An empty document of that machine (borrowed); NULL: out of memory. */
json_t *mlo_choices_new(const json_t *machine);
/* MLO_EFORMAT where it is no such document. `name` stands for it in errors. */
MLO_MUST_USE enum mlo_status mlo_choices_check(const json_t *choices, const char *name,
                                               struct mlo_error *err);
/* Whether both were measured on the same machine, with the same versions of everything. */
bool mlo_choices_same_machine(const json_t *a, const json_t *b);
/* Adds the steps of `from` that `into` lacks. MLO_ESTALE, with the first difference, where they are of
 * different machines. */
MLO_MUST_USE enum mlo_status mlo_choices_merge(json_t *into, const json_t *from, struct mlo_error *err);
/* The entry of a step, or NULL; borrowed. `choices` may be NULL. */
const json_t *mlo_choices_find(const json_t *choices, const struct mlo_digest *key);
/* Sets it; takes `entry` over. */
MLO_MUST_USE enum mlo_status mlo_choices_put(json_t *choices, const struct mlo_digest *key, json_t *entry,
                                             struct mlo_error *err);
/* The same without what belongs to a model (names of nodes): what may be shared. A copy; NULL: out of memory.
 */
json_t *mlo_choices_shareable(const json_t *choices);

#endif
