/* Which of several points are worth having, and in which order for a goal. */
#include <math.h>
#include <string.h>

#include "pipeline/steps/search.h"

bool mlo_point_whole(const struct mlo_search_point *point)
{
    for (int i = 0; i < MLO_AXES; i++)
        if (!point->axis[i].known)
            return false;
    return true;
}

bool mlo_point_dominates(const struct mlo_search_point *a, const struct mlo_search_point *b)
{
    bool better = false;
    for (int i = 0; i < MLO_AXES; i++) {
        double ours = a->axis[i].value, theirs = b->axis[i].value;
        if (!(ours <= theirs))
            return false;
        better = better || ours < theirs;
    }
    double ours = a->axis[MLO_AXIS_DROP].high, theirs = b->axis[MLO_AXIS_DROP].high;
    return ours <= theirs && (better || ours < theirs);
}

void mlo_points_rank(const struct mlo_search_point *points, size_t count, int *rank)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        rank[i] = -1;
        left += mlo_point_whole(&points[i]);
    }
    for (int layer = 0; left > 0; layer++) {
        for (size_t i = 0; i < count; i++) {
            bool first = rank[i] < 0 && mlo_point_whole(&points[i]);
            for (size_t k = 0; first && k < count; k++)
                if ((rank[k] < 0 || rank[k] == layer) && mlo_point_whole(&points[k]))
                    first = !mlo_point_dominates(&points[k], &points[i]);
            if (first) {
                rank[i] = layer;
                left--;
            }
        }
    }
}

/* --- volume -------------------------------------------------------------------------------------------- */

enum { POINTS_MAX = 160 };
static const double SPAN = 1.25; /* of the bound, and of what the source has */

static double drop_bound(const struct mlo_goal *goal)
{
    double bound = 0.05;
    for (size_t i = 0; i < goal->count; i++)
        if (strcmp(goal->conditions[i].metric, "accuracy_drop") == 0 && goal->conditions[i].offset > 0)
            bound = goal->conditions[i].offset;
    return SPAN * bound;
}

/* The area that boxes from the origin to (x, y) cover together. */
static double area(double (*boxes)[2], size_t count)
{
    double sum = 0, high = 0;
    for (size_t i = 1; i < count; i++) /* by x, the longest first; few */
        for (size_t k = i; k > 0 && boxes[k][0] > boxes[k - 1][0]; k--)
            for (int d = 0; d < 2; d++) {
                double t = boxes[k][d];
                boxes[k][d] = boxes[k - 1][d];
                boxes[k - 1][d] = t;
            }
    for (size_t i = 0; i < count; i++) {
        if (boxes[i][1] <= high)
            continue;
        sum += boxes[i][0] * (boxes[i][1] - high);
        high = boxes[i][1];
    }
    return sum;
}

double mlo_points_volume(const struct mlo_goal *goal, const struct mlo_search_point *points, size_t count)
{
    double reach[POINTS_MAX][MLO_AXES], boxes[POINTS_MAX][2], bound = drop_bound(goal), volume = 0;
    size_t n = 0;
    for (size_t i = 0; i < count && n < POINTS_MAX; i++) {
        const struct mlo_bounded *a = points[i].axis;
        if (!mlo_point_whole(&points[i]) || !(a[MLO_AXIS_LATENCY].value > 0) || !(a[MLO_AXIS_SIZE].value > 0))
            continue;
        double room[MLO_AXES] = {1 - MLO_MAX(a[MLO_AXIS_DROP].value, 0.0) / bound,
                                 log(SPAN / a[MLO_AXIS_LATENCY].value), log(SPAN / a[MLO_AXIS_SIZE].value)};
        if (!(room[0] > 0 && room[1] > 0 && room[2] > 0))
            continue;
        size_t at = n++;
        for (; at > 0 && reach[at - 1][0] < room[0]; at--) /* the most accurate first */
            memcpy(reach[at], reach[at - 1], sizeof reach[at]);
        memcpy(reach[at], room, sizeof room);
    }
    for (size_t i = 0; i < n;
         i++) { /* a slab of the drop between two points: what is as accurate reaches it */
        double thick = reach[i][0] - (i + 1 < n ? reach[i + 1][0] : 0);
        for (size_t k = 0; k <= i; k++)
            memcpy(boxes[k], &reach[k][1], sizeof boxes[k]);
        volume += thick > 0 ? thick * area(boxes, i + 1) : 0;
    }
    return volume;
}

static struct mlo_condition_facts facts_of(const struct mlo_condition *c, const struct mlo_search_point *p)
{
    struct mlo_condition_facts f = {0};
    const struct mlo_bounded *value = NULL, *ratio = NULL;
    struct mlo_bounded size = {p->size_bytes, p->size_bytes, p->size_bytes, p->size_bytes > 0};
    if (strcmp(c->metric, "accuracy_drop") == 0) {
        value = &p->axis[MLO_AXIS_DROP];
    } else if (strcmp(c->metric, "size") == 0) {
        value = &size;
        ratio = &p->axis[MLO_AXIS_SIZE];
    } else {
        bool p99 = strcmp(c->metric, "latency_p99") == 0;
        value = p99 ? &p->p99_us : &p->p50_us;
        ratio = p99 ? &p->p99_ratio : &p->axis[MLO_AXIS_LATENCY];
    }
    f.have_value = value->known;
    f.value = value->value;
    f.low = value->low;
    f.high = value->high;
    if (ratio && ratio->known) {
        f.have_ratio = true;
        f.ratio = ratio->value;
        f.ratio_low = ratio->low;
        f.ratio_high = ratio->high;
    }
    return f;
}

size_t mlo_goal_held(const struct mlo_goal *goal, const struct mlo_search_point *point, bool hopeful)
{
    size_t held = 0;
    for (size_t i = 0; i < goal->count; i++) {
        struct mlo_condition_facts facts = facts_of(&goal->conditions[i], point);
        struct mlo_condition_verdict verdict;
        if (hopeful) {
            facts.high = facts.low;
            facts.ratio_high = facts.ratio_low;
        }
        mlo_condition_judge(&goal->conditions[i], &facts, &verdict);
        held += verdict.judged ? verdict.holds : hopeful;
    }
    return held;
}

int mlo_goal_order(const struct mlo_goal *goal, const struct mlo_search_point *a,
                   const struct mlo_search_point *b)
{
    size_t held_a = mlo_goal_held(goal, a, false), held_b = mlo_goal_held(goal, b, false);
    if (held_a != held_b)
        return held_a > held_b ? -1 : 1;
    /* where nobody keeps all of it, who comes nearest to the accuracy is the best there is */
    enum mlo_axis first = held_a == goal->count ? goal->objective : MLO_AXIS_DROP;
    for (int i = -1; i < MLO_AXES; i++) {
        enum mlo_axis axis = i < 0 ? first : (enum mlo_axis)i;
        double x = a->axis[axis].value, y = b->axis[axis].value;
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}
