#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace wellhead {
namespace {

constexpr int64_t kMostThreads = 256;
constexpr int64_t kPiecesPerThread = 8;
constexpr int kSpins = 4000;  // some 50 to 100 microseconds: longer than the gaps between the operators of a step
constexpr uint64_t kClosed = 0xffffffff;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One job at a time. `ticket` holds the job's number above and the next piece below; taking a piece is one compare-and-swap,
// which fails for whoever still has an older job in mind. So the fields beside it may be read before the swap: they belong
// to the job if the swap succeeds. For that the ticket is closed before they change: else a late helper, with the old ticket
// and the new number of pieces, would find a piece that is not there.
class Team {
 public:
  void run(int64_t total, int64_t grain, bool each, void (*body)(void*, int64_t, int64_t), void* context) {
    const int64_t size = wanted_.load(std::memory_order_relaxed);
    const int64_t grains = total / std::max<int64_t>(1, grain), pieces = each ? grains : std::min(grains, size * kPiecesPerThread);
    std::unique_lock<std::mutex> taken(busy_, std::defer_lock);
    if (pieces < 2 || size < 2 || !taken.try_lock()) {
      if (total > 0) body(context, 0, total);
      return;
    }
    hire(size - 1);
    ticket_.store(static_cast<uint64_t>(job_) << 32 | kClosed, std::memory_order_seq_cst);
    body_ = body;
    context_ = context;
    total_ = total;
    done_ = 0;
    failure_ = nullptr;
    pieces_.store(static_cast<uint32_t>(pieces), std::memory_order_release);
    job_ = job_ + 1;
    ticket_.store(static_cast<uint64_t>(job_) << 32, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) > 0) {
      { const std::lock_guard<std::mutex> lock(door_); }
      bell_.notify_all();
    }
    work(job_);
    for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; ++spins) {
      if (spins < kSpins) relax();
      else sched_yield();  // the piece that is missing may need this processor
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  void resize(int64_t size) { wanted_.store(std::clamp<int64_t>(size, 1, kMostThreads), std::memory_order_relaxed); }
  int64_t size() const { return wanted_.load(std::memory_order_relaxed); }

 private:
  // Takes pieces of the job until there are none.
  void work(uint32_t job) {
    for (;;) {
      uint64_t ticket = ticket_.load(std::memory_order_acquire);
      const uint32_t piece = static_cast<uint32_t>(ticket);
      const uint32_t pieces = pieces_.load(std::memory_order_acquire);
      if (ticket >> 32 != job || piece >= pieces) return;
      const auto body = body_.load(std::memory_order_relaxed);
      void* const context = context_.load(std::memory_order_relaxed);
      const int64_t total = total_.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      try {
        body(context, total * piece / pieces, total * (piece + 1) / pieces);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(door_);
        failure_ = std::current_exception();
      }
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  // A system that gives no more threads makes it slower, not wrong: pieces go to whoever there is.
  void hire(int64_t helpers) try {
    for (; hired_ < helpers; ++hired_) std::thread([this, me = hired_] { help(me); }).detach();
  } catch (const std::system_error&) {
  }

  [[noreturn]] void help(int64_t me) {
    uint32_t seen = 0;
    for (;;) {
      seen = next_job(seen);
      if (me < wanted_.load(std::memory_order_relaxed) - 1) work(seen);
    }
  }

  // Waits for a job after `seen`: awake for a while, then asleep.
  uint32_t next_job(uint32_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
      const auto job = static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32);
      if (job != seen) return job;
      relax();
    }
    std::unique_lock<std::mutex> lock(door_);
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    bell_.wait(lock, [&] { return static_cast<uint32_t>(ticket_.load(std::memory_order_seq_cst) >> 32) != seen; });
    asleep_.fetch_sub(1, std::memory_order_seq_cst);
    return static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32);
  }

  std::atomic<int64_t> wanted_{1};
  std::mutex busy_;
  int64_t hired_ = 0;
  uint32_t job_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<void (*)(void*, int64_t, int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> total_{0};
  std::atomic<uint32_t> pieces_{0};
  std::mutex door_;
  std::condition_variable bell_;
  std::atomic<int64_t> asleep_{0};
  std::exception_ptr failure_;
};

// Never destroyed: its threads may still wait when the process ends.
std::atomic<Team*> team{nullptr};

// A child of fork has no threads but its own; it starts with a team of its own, of the same size.
void after_fork() {
  const int64_t size = team.load()->size();
  auto* fresh = new Team;
  fresh->resize(size);
  team.store(fresh);
}

Team& the_team() {
  static std::once_flag once;
  std::call_once(once, [] {
    team.store(new Team);
    pthread_atfork(nullptr, nullptr, after_fork);
  });
  return *team.load(std::memory_order_acquire);
}

}  // namespace

void set_team_size(int64_t size) { the_team().resize(size); }
int64_t team_size() { return the_team().size(); }

void share_out(int64_t total, int64_t grain, bool each, void (*body)(void*, int64_t, int64_t), void* context) {
  the_team().run(total, grain, each, body, context);
}

}  // namespace wellhead
