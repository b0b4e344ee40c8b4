// Causal attention over pages with a running softmax.
//
// A page is one block of keys at an absolute position, and blocks are visited in ascending order, so the sums of a row are
// ordered by its position alone. A row takes part only in pages of which it sees at least one key.
#include "bfloat16.h"
#include "kernels.h"
#include "numbers.h"
#include "team.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace wellhead {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Up to so many rows per head an item takes several heads: reading the pages is all the work, and longer runs read faster.
constexpr int64_t kStreamed = 8;

// One piece of work: `count` positions from `first`, all query heads of `heads` key-value heads from `head`.
struct Item {
  int64_t sequence, head, heads, first, count;
};

// Positions of one block of queries: a power of two, so that it divides the page size and only windows split its rows.
int64_t positions_per_item(int64_t group, int64_t page_size) {
  int64_t positions = 1;
  while (positions * 2 * group <= kRows && positions * 2 <= page_size) positions *= 2;
  return positions;
}

// Long sequences first, so that what is left for the end is short.
std::vector<Item> plan(const Sequences& all, int64_t kv_heads, int64_t group, int64_t positions) {
  std::vector<int64_t> order(all.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all.lens[a] > all.lens[b]; });
  const int64_t shares = std::max<int64_t>(1, 4 * team_size() / std::max<int64_t>(1, all.count));
  const int64_t streamed = std::max<int64_t>(1, kv_heads / shares);
  std::vector<Item> items;
  for (const int64_t s : order) {
    const int64_t end = all.lens[s], begin = end - (all.starts[s + 1] - all.starts[s]);
    const int64_t step = (end - begin) * group <= kStreamed ? streamed : 1;
    for (int64_t head = 0; head < kv_heads; head += step) {
      for (int64_t first = begin; first < end;) {
        const int64_t next = std::min((first / positions + 1) * positions, end);
        items.push_back({s, head, std::min(step, kv_heads - head), first, next - first});
        first = next;
      }
    }
  }
  return items;
}

// The running softmax of one row.
struct Running {
  float top = kNever;
  float total = 0.f;
};

// scores[size] -> weights[size], of which only columns [from, to) are seen; rescales the row's sums when a new top appears.
template <class S, class C>
void soften(float* scores, int64_t size, int64_t from, int64_t to, float scale, C* weights, Running& row, float* mixed, int64_t dim) {
  std::fill(scores, scores + from, kNever);
  std::fill(scores + to, scores + size, kNever);
  Vec highest = load(scores);
  for (int64_t i = kLanes; i < size; i += kLanes) highest = at::vec::maximum(highest, load(scores + i));
  const float here = largest(highest) * scale;
  const float top = here > row.top || std::isnan(here) ? here : row.top;
  if (top != row.top) {  // true for NaN too: the factor becomes NaN, and so does the row
    const float factor = std::exp(row.top - top);
    map(mixed, dim, [&](const Vec& v) { return v * Vec(factor); }, mixed);
    row.total *= factor;
    row.top = top;
  }
  const Vec by(scale), base(top == kNever ? 0.f : top);
  Vec total(0.f);
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vec p = exponential<S>(at::vec::fmsub(load(scores + i), by, base));
    store(weights + i, p);
    total = total + load(weights + i);  // as rounded, so that the weights of a row add up to one
  }
  row.total += sum(total);
}

template <class S, class C>
class Attention {
 public:
  Attention(const S* q, int64_t heads, const Pages& kv, const Sequences& all, float scale, int64_t window, S* out)
      : q_(q), heads_(heads), group_(heads / kv.heads), positions_(positions_per_item(group_, kv.size)), kv_(kv), all_(all),
        scale_(scale), window_(window), out_(out) {}

  void run() {
    const std::vector<Item> items = plan(all_, kv_.heads, group_, positions_);
    share(items.size(), 1, [&](int64_t begin, int64_t end) {
      ProductScope<C> scope;
      for (int64_t i = begin; i < end; ++i) attend_item(items[i]);
    }, true);
  }

 private:
  // A thread's memory for one item; rows are ordered by head, then position, then query head of the group.
  struct Work {
    C* queries;
    float* mixed;
    float* scores;
    C* weights;
    Running* running;
  };

  void attend_item(const Item& item) const {
    const int64_t dim = kv_.dim, size = kv_.size, rows = item.count * group_, all_rows = rows * item.heads;
    const Work work{scratch<C, 0>(all_rows * dim), scratch<float, 1>(all_rows * dim), scratch<float, 2>(rows * size),
                    scratch<C, 3>(rows * size), scratch<Running, 6>(all_rows)};
    std::fill(work.running, work.running + all_rows, Running{});
    std::fill(work.mixed, work.mixed + all_rows * dim, 0.f);
    for (int64_t r = 0; r < all_rows; ++r) convert(work.queries + r * dim, q_ + offset(item, r), dim);
    const int64_t earliest = window_ ? std::max<int64_t>(0, item.first - window_ + 1) : 0;
    for (int64_t page = earliest / size; page * size < item.first + item.count; ++page) {
      for (int64_t h = 0; h < item.heads; ++h) {
        const int64_t r = h * rows;
        visit(item, page, item.head + h, {work.queries + r * dim, work.mixed + r * dim, work.scores, work.weights, work.running + r});
      }
    }
    for (int64_t r = 0; r < all_rows; ++r) {
      const Vec total(work.running[r].total);
      map(out_ + offset(item, r), dim, [&](const Vec& v) { return v / total; }, work.mixed + r * dim);
    }
  }

  // Where row r of an item lies in q and in out.
  int64_t offset(const Item& item, int64_t r) const {
    const int64_t rows = item.count * group_, head = item.head + r / rows, position = item.first + r % rows / group_;
    const int64_t token = all_.starts[item.sequence + 1] - all_.lens[item.sequence] + position;
    return (token * heads_ + head * group_ + r % group_) * kv_.dim;
  }

  // One page and one head, for the rows of the item that see any key of it.
  void visit(const Item& item, int64_t page, int64_t head, const Work& work) const {
    const int64_t dim = kv_.dim, size = kv_.size, low = page * size, last = item.first + item.count;
    const int64_t begin = std::max(item.first, low), end = window_ ? std::min(last, low + size - 1 + window_) : last;
    if (begin >= end) return;
    const int64_t skip = (begin - item.first) * group_, count = (end - begin) * group_;
    // Keys beyond the block of queries are left out, up to its end even where the item is cut short: its position decides.
    const int64_t block_end = (item.first / positions_ + 1) * positions_;
    const int64_t width = std::min(size, (block_end - low + 15) / 16 * 16);
    const int64_t id = all_.table[item.sequence * all_.width + page];
    const S* stored = static_cast<const S*>(kv_.data);
    const S* stored_values = stored + kv_.offset(id, 1, head);
    product(count, width, dim, work.queries + skip * dim, dim, keys(stored + kv_.offset(id, 0, head)), size, work.scores, width, false,
            stored_values);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t position = begin + r / group_;
      const int64_t from = window_ ? std::max<int64_t>(0, position - window_ + 1 - low) : 0, to = std::min(width, position + 1 - low);
      soften<S>(work.scores + r * width, width, from, to, scale_, work.weights + r * width, work.running[skip + r],
                work.mixed + (skip + r) * dim, dim);
    }
    const C* v = values(stored_values, width, std::min(width, all_.lens[item.sequence] - low));
    product(count, dim, width, work.weights, width, v, dim, work.mixed + skip * dim, dim, true, after(item, page, head));
  }

  // The keys that the item visits next, or null.
  const S* after(const Item& item, int64_t page, int64_t head) const {
    if (++head == item.head + item.heads) head = item.head, ++page;
    if (page * kv_.size >= item.first + item.count) return nullptr;
    return static_cast<const S*>(kv_.data) + kv_.offset(all_.table[item.sequence * all_.width + page], 0, head);
  }

  const C* keys(const S* from) const {
    if constexpr (std::is_same_v<S, C>) {
      return from;
    } else {
      C* wide = scratch<C, 4>(kv_.size * kv_.dim);
      convert(wide, from, kv_.size * kv_.dim);
      return wide;
    }
  }

  // Slots that were never written may hold NaN, and 0 * NaN is NaN: they are zero in a copy.
  const C* values(const S* from, int64_t width, int64_t written) const {
    const int64_t dim = kv_.dim;
    if (std::is_same_v<S, C> && written == width) return reinterpret_cast<const C*>(from);
    C* copy = scratch<C, 5>(width * dim);
    const int64_t kept = (kPairs<C> ? written / 2 * 2 : written) * dim;
    convert(copy, from, kept);
    std::fill(copy + kept, copy + width * dim, C(0.f));
    if (kPairs<C> && written % 2) {
      for (int64_t i = 0; i < dim; ++i) copy[kept + i * 2] = static_cast<C>(from[kept + i * 2]);
    }
    return copy;
  }

  const S* q_;
  int64_t heads_, group_, positions_;
  const Pages& kv_;
  const Sequences& all_;
  float scale_;
  int64_t window_;
  S* out_;
};

}  // namespace

void attend(const void* q, int64_t heads, const Pages& kv, const Sequences& sequences, float scale, int64_t window, void* out) {
  by_type(kv.type, kv.pairs, [&](auto s, auto c) {
    using S = decltype(s);
    Attention<S, decltype(c)>(static_cast<const S*>(q), heads, kv, sequences, scale, window, static_cast<S*>(out)).run();
  });
}

}  // namespace wellhead
