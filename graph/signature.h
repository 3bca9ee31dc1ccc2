/* What a model takes and gives, as a document for those who know no graphs: names, element types, shapes. */
#ifndef MLO_GRAPH_SIGNATURE_H
#define MLO_GRAPH_SIGNATURE_H

#include "graph/model.h"

/* {"inputs":[{"name","type":"float32","shape":[1,"N",null]|null,"optional"?:true}],
 *  "outputs":[the same without optional]}: in the model's order; a dim is a number, a name (what has the same
 * name is the same number), or null (anything); a shape is null where the rank is unknown; a type is null
 * where it is unknown, and "sequence(float32)" or the like for a sequence. Inputs that have a default value
 * are optional. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_model_signature(const struct mlo_model *model, json_t **out,
                                                 struct mlo_error *err);

#endif
