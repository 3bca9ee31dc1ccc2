/* Recorded choices of a step: a JSON document whose digest enters the derivation of what was made by it, so
 * that the artifact follows from its inputs and the decision, however long or short the search was. The same
 * document, unfinished, is what a search leaves when it is killed.
 *
 *   {"format":"mlopt-decision-1", "step":"quantize", "model": digest of the file that the step was given,
 *    "data":{"calibrate","select"} (mlo_step_fed_digest), "metric","budget","limit","bound",
 *    "samples", "complete": nothing was left to try, "holds": the budget does, "drop": {"value","low","high"}
 *    of what was chosen, "all_integer": the same of no node given back,
 *    "given_back":[{"node","op","to","sqnr_db","macs","why"}], "ranking":[{"node","op","sqnr_db","macs"}],
 *    "tried":[{"given_back":{node: precision},"drop","holds"}]}
 *
 * That of the step tune has no data: {"format","step":"tune","model","choices"} (engines/choices.h). */
#ifndef MLO_STEPS_DECISION_H
#define MLO_STEPS_DECISION_H

#include "pipeline/steps/steps.h"

#define MLO_DECISION_FORMAT "mlopt-decision-1"

/* Reads a decision of this step for the model at ctx->model_path: MLO_EFORMAT where it is none, MLO_EINVAL
 * where it was made for another step or model. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_decision_load(const struct mlo_step_context *ctx, const char *path,
                                               const char *step, json_t **out, struct mlo_error *err);
/* Writes the canonical text, of which the digest is taken, atomically. */
MLO_MUST_USE enum mlo_status mlo_decision_save(const json_t *decision, const char *path,
                                               struct mlo_error *err);
/* The options of the quantize pass with what the decision gives back: a copy, in *out (yours). */
MLO_MUST_USE enum mlo_status mlo_decision_options(const json_t *decision, const json_t *options, json_t **out,
                                                  struct mlo_error *err);
#endif
