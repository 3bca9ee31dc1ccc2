/* The filters and orders of MLflow's search calls, as conditions of the catalog (registry/catalog.h).
 *
 *     name LIKE 'vision.%' AND tags.team = 'edge'
 *
 * Grammar:  FILTER     is  [ CONDITION { AND CONDITION } ]
 *           CONDITION  is  KEY OP VALUE
 *           KEY        is  [attribute.]NAME  or  tag.KEY  or  tags.KEY, a KEY plain (letters, digits, _ . /
 * -), in `backticks` or in "double quotes" OP         is  =  !=  LIKE  ILIKE  IN  NOT IN, of numbers  =  !=
 * <  <=  >  >= VALUE      is  'a text' or "a text", whose quote is written twice within; a whole number; of
 * IN a list
 *                          ('a', 'b')
 *
 * NAME is `name`; of versions also version_number (a number) and run_id (which nothing has here). Words are
 * read without regard to case, but for keys. What MLflow's filters can say beyond that is refused, never
 * ignored. https://mlflow.org/docs/latest/search-runs.html has the grammar that this is a part of. */
#ifndef MLO_HTTP_MLFLOW_FILTER_H
#define MLO_HTTP_MLFLOW_FILTER_H

#include "base/base.h"

#define MLO_MLFLOW_FILTER_MAX 8192   /* bytes of a filter */
#define MLO_MLFLOW_CONDITIONS_MAX 32 /* of a filter */
#define MLO_MLFLOW_LIST_MAX 1000     /* texts of a list */

enum mlo_mlflow_kind { MLO_MLFLOW_MODELS, MLO_MLFLOW_VERSIONS };

/* *out is yours: an array, empty for NULL or a blank text. MLO_EINVAL says what is wrong, with the column in
 * `where`. */
MLO_MUST_USE enum mlo_status mlo_mlflow_filter(enum mlo_mlflow_kind kind, const char *text, json_t **out,
                                               struct mlo_error *err);

enum mlo_mlflow_by { MLO_MLFLOW_NAME, MLO_MLFLOW_VERSION, MLO_MLFLOW_CREATED, MLO_MLFLOW_CHANGED };

/* What to order by, and whether it falls. */
struct mlo_mlflow_order {
    enum mlo_mlflow_by by;
    bool falling;
};
/* Of the entries of order_by: KEY [ASC|DESC]. One key orders; further ones may only say what decides anyhow:
 * the name, rising, then of versions the version_number, falling. Without an entry models are ordered by
 * name, versions by last_updated_timestamp, falling. */
MLO_MUST_USE enum mlo_status mlo_mlflow_order(enum mlo_mlflow_kind kind, const char *const *entries,
                                              size_t count, struct mlo_mlflow_order *out,
                                              struct mlo_error *err);

#endif
