// Causal attention over pages with a running softmax.
//
// A page is one block of keys at an absolute position, and blocks are visited in ascending order, so the sums of a row are
// ordered by its position alone. A row takes part only in pages of which it sees at least one key.
#include "kernels.h"
#include "numbers.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace wellhead {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// With so few rows a page is read from memory faster than the hardware foresees, so the next one is asked for early.
constexpr int64_t kStreamed = 8;

// One piece of work: `count` positions from `first`, all query heads of one key-value head.
struct Item {
  int32_t sequence;
  int32_t head;
  int64_t first, count;
};

// Positions per item: a power of two, so that it divides the page size and only windows split the rows of an item.
int64_t positions_per_item(int64_t group, int64_t page_size) {
  int64_t positions = 1;
  while (positions * 2 * group <= kRows && positions * 2 <= page_size) positions *= 2;
  return positions;
}

// Long sequences first, so that what is left for the end is short.
std::vector<Item> plan(const Sequences& all, int64_t kv_heads, int64_t positions) {
  std::vector<int32_t> order(all.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return all.lens[a] > all.lens[b]; });
  std::vector<Item> items;
  for (const int32_t s : order) {
    const int64_t end = all.lens[s], begin = end - (all.starts[s + 1] - all.starts[s]);
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t first = begin; first < end;) {
        const int64_t next = std::min((first / positions + 1) * positions, end);
        items.push_back({s, static_cast<int32_t>(head), first, next - first});
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
    total = total + p;
    store(weights + i, p);
  }
  row.total += sum(total);
}

template <class S, class C>
class Attention {
 public:
  Attention(const S* q, int64_t heads, const Pages& kv, const Sequences& all, float scale, int64_t window, S* out)
      : q_(q), heads_(heads), group_(heads / kv.heads), kv_(kv), all_(all), scale_(scale), window_(window), out_(out) {}

  void run() {
    const std::vector<Item> items = plan(all_, kv_.heads, positions_per_item(group_, kv_.size));
    const int64_t workers = std::min<int64_t>(at::get_num_threads(), items.size());
    std::atomic<size_t> next{0};
    at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
      ProductScope<C> scope;
      for (size_t i = next++; i < items.size(); i = next++) attend_item(items[i]);
    });
  }

 private:
  // The rows [begin, end) of an item that see any key of the page at `low`.
  struct Span {
    int64_t begin, end;
  };
  Span span(const Item& item, int64_t low) const {
    const int64_t last = item.first + item.count;
    const int64_t end = window_ ? std::min(last, low + kv_.size - 1 + window_) : last;
    return {(std::max(item.first, low) - item.first) * group_, (end - item.first) * group_};
  }

  const S* query(const Item& item, int64_t row) const {
    const int64_t token = all_.starts[item.sequence + 1] - all_.lens[item.sequence] + item.first + row / group_;
    return q_ + (token * heads_ + item.head * group_ + row % group_) * kv_.dim;
  }

  void attend_item(const Item& item) const {
    const int64_t dim = kv_.dim, size = kv_.size, rows = item.count * group_;
    C* queries = scratch<C, 0>(rows * dim);
    float* mixed = scratch<float, 1>(rows * dim);
    float* scores = scratch<float, 2>(rows * size);
    C* weights = scratch<C, 3>(rows * size);
    std::vector<Running> running(rows);
    std::fill(mixed, mixed + rows * dim, 0.f);
    for (int64_t r = 0; r < rows; ++r) convert(queries + r * dim, query(item, r), dim);

    const int64_t earliest = window_ ? std::max<int64_t>(0, item.first - window_ + 1) : 0;
    for (int64_t page = earliest / size; page * size < item.first + item.count; ++page) {
      const int64_t low = page * size;
      const Span seen = span(item, low);
      if (seen.begin >= seen.end) continue;
      const int64_t count = seen.end - seen.begin;
      if (rows <= kStreamed && (page + 1) * size < item.first + item.count) fetch(item, page + 1);
      product(count, size, dim, queries + seen.begin * dim, dim, keys(item, page), size, scores, size, false);
      for (int64_t r = seen.begin; r < seen.end; ++r) {
        const int64_t position = item.first + r / group_, i = r - seen.begin;
        const int64_t from = window_ ? std::max<int64_t>(0, position - window_ + 1 - low) : 0;
        const int64_t to = std::min(size, position + 1 - low);
        soften<S>(scores + i * size, size, from, to, scale_, weights + i * size, running[r], mixed + r * dim, dim);
      }
      product(count, dim, size, weights, size, values(item, page), dim, mixed + seen.begin * dim, dim, true);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Vec total(running[r].total);
      map(out_ + (query(item, r) - q_), dim, [&](const Vec& v) { return v / total; }, mixed + r * dim);
    }
  }

  void fetch(const Item& item, int64_t page) const {
    for (int64_t half = 0; half < 2; ++half) {
      const char* from = reinterpret_cast<const char*>(stored(item, page, half));
      for (int64_t at = 0; at < kv_.size * kv_.dim * static_cast<int64_t>(sizeof(S)); at += 64) __builtin_prefetch(from + at, 0, 2);
    }
  }

  const S* stored(const Item& item, int64_t page, int64_t half) const {
    const int64_t id = all_.table[item.sequence * all_.width + page];
    return static_cast<const S*>(kv_.data) + kv_.offset(id, half, item.head);
  }

  const C* keys(const Item& item, int64_t page) const {
    const S* from = stored(item, page, 0);
    if constexpr (std::is_same_v<S, C>) {
      return from;
    } else {
      C* wide = scratch<C, 4>(kv_.size * kv_.dim);
      convert(wide, from, kv_.size * kv_.dim);
      return wide;
    }
  }

  // Slots of the last page that were never written may hold NaN, and 0 * NaN is NaN: they are zero in a copy.
  const C* values(const Item& item, int64_t page) const {
    const S* from = stored(item, page, 1);
    const int64_t dim = kv_.dim, written = std::min(kv_.size, all_.lens[item.sequence] - page * kv_.size);
    if (std::is_same_v<S, C> && written == kv_.size) return reinterpret_cast<const C*>(from);
    C* copy = scratch<C, 5>(kv_.size * dim);
    const int64_t kept = (kPairs<C> ? written / 2 * 2 : written) * dim;
    convert(copy, from, kept);
    std::fill(copy + kept, copy + kv_.size * dim, C(0.f));
    if (kPairs<C> && written % 2) {
      for (int64_t i = 0; i < dim; ++i) copy[kept + i * 2] = static_cast<C>(static_cast<float>(from[kept + i * 2]));
    }
    return copy;
  }

  const S* q_;
  int64_t heads_, group_;
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
