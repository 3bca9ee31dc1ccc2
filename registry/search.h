/* Finding versions by their facts (facts.h), within one project.
 *
 *     tag.team = vision and metric.val/top1 >= 0.9 and param.optimizer != sgd
 *     commit ~ 1a2b3c4, dataset = train@3, !tag.broken
 *
 * Grammar:  FILTER    is  [ CONDITION { ('and' | ',') CONDITION } ]
 *           CONDITION is  KEY OP VALUE,  KEY (it has one)  or  '!' KEY (it has none)
 *           KEY       is  tag.NAME | param.NAME | metric.NAME | commit | dirty | remote | dataset | licence |
 *                         model | version | author
 *           OP        is  =  !=  <  <=  >  >=  ~ (begins with)
 *           VALUE     is  a word without blanks, commas and quotes, or "a text", with \" and \\ in it
 *
 * Metrics and version are numbers, as are params where the value is a number without quotes: = != < <= > >=.
 * All else is text: = != ~. `!=` holds where there is no such value, so also where there is none at all. A
 * dataset is NAME (any version of it), NAME@V or sha256:….
 *
 * ORDER is KEY[':asc'|':desc'], falling unless said: `created` (the default), `version`, metric.NAME or
 * param.NAME. Versions without that number are not listed. */
#ifndef MLO_REGISTRY_SEARCH_H
#define MLO_REGISTRY_SEARCH_H

#include "registry/db.h"
#include "registry/page.h"

#define MLO_SEARCH_CONDITIONS_MAX 16
#define MLO_SEARCH_LOOK 5000

struct mlo_search {
    int64_t project_id;
    const char *filter; /* NULL or "": all versions */
    const char *order;  /* NULL or "": created:desc */
    int64_t look; /* how many versions a page looks at when it walks them in order; 0: MLO_SEARCH_LOOK */
};

/* A page {"items": [{id, project, model, version, manifest_digest, description, created_at, created_by,
 * facts}], "next": token or null}. A token goes on exactly where its page ended, whatever was added
 * meanwhile; one of another search is MLO_EINVAL, as is a filter that does not read (`where` is its column).
 * A page looks at a bounded number of versions, so where few of many fit it may be short, or empty, and still
 * have a `next`; also where some of it was deleted, which is not shown. */
MLO_MUST_USE enum mlo_status mlo_version_search(struct mlo_db_conn *conn, const struct mlo_search *search,
                                                const struct mlo_page *page, json_t **out,
                                                struct mlo_error *err);

#endif
