// A small team of threads that shares out pieces of work.
//
// Why not OpenMP: at the end of each of its regions every thread must arrive, also one that the system is not running just
// now. On a machine with other work that costs a time slice per region, and a step has hundreds. Here the caller waits only
// for pieces that somebody has begun; a thread that is late finds nothing left and is missed by nobody.
#pragma once

#include <cstdint>

namespace wellhead {

// How many threads work, the caller included; at most 256. Takes effect with the next `share`.
void set_team_size(int64_t size);
int64_t team_size();

// Calls body(context, begin, end) for pieces of [0, total) of at least `grain`, on the caller and on helpers; some pieces per
// thread, or with `each` one per grain, for work of uneven size. Which thread does which piece is open. Rethrows what a piece
// threw. Calls from several threads at once, or from within a piece, are right but run on their caller alone while the team
// is taken.
void share_out(int64_t total, int64_t grain, bool each, void (*body)(void*, int64_t, int64_t), void* context);

template <class F>
inline void share(int64_t total, int64_t grain, F&& body, bool each = false) {
  share_out(total, grain, each, [](void* f, int64_t begin, int64_t end) { (*static_cast<F*>(f))(begin, end); }, &body);
}

}  // namespace wellhead
