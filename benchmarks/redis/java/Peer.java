// Redisson as a worker: the jobs of harness/worker.py, readers and writers among them.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.yaml.snakeyaml.Yaml;

public final class Peer {
    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in));
    /** As DRAIN_TIMEOUT in harness/worker.py. */
    private static final double DRAIN_SECONDS = 35;
    /** Cycles until the compiler of the virtual machine is done with most of it. */
    private static final int WARM_UP_CYCLES = 3000;

    private final RedissonClient redisson;
    private final Map<String, Object> job;

    private Peer(RedissonClient redisson, Map<String, Object> job) {
        this.redisson = redisson;
        this.job = job;
    }

    public static void main(String[] arguments) throws Exception {
        // JSON is YAML, and Redisson brings a parser of the latter.
        Map<String, Object> job = new Yaml().load(arguments[0]);
        Config config = new Config();
        config.setLockWatchdogTimeout(Math.round(1000 * number(job, "lease")));
        config.useSingleServer().setAddress((String) job.get("url"));
        RedissonClient redisson = Redisson.create(config);
        try {
            new Peer(redisson, job).run();
        } finally {
            redisson.shutdown();
        }
        System.exit(0);
    }

    private void run() throws Exception {
        reply("\"ready\": true");
        switch ((String) job.get("kind")) {
            case "hand_over" -> handOver();
            case "hold" -> hold();
            case "hold_each" -> holdEach();
            case "take_turns" -> takeTurns();
            case "time_cycles" -> timeCycles();
            case "wait_for_killed" -> waitForKilled();
            case "wait_together" -> waitTogether();
            default -> throw new IllegalArgumentException("no job " + job.get("kind"));
        }
    }

    private void handOver() throws Exception {
        RLock lock = lock(key(), "mutex");
        String word = order();
        while (!word.isEmpty() && !word.equals("end")) {
            lock.lock();
            reply("\"got_in\": %.9f", monotonic());
            sleep(Double.parseDouble(word));
            double left = monotonic();
            lock.unlock();
            reply("\"left\": %.9f", left);
            word = order();
        }
    }

    private void hold() throws Exception {
        RLock lock = lock(key(), "mutex");
        order();
        lock.lock();
        reply("\"got_in\": %.9f", monotonic());
        order();
        double left = monotonic();
        lock.unlock();
        reply("\"left\": %.9f", left);
    }

    private void holdEach() throws Exception {
        order();
        List<RLock> held = new ArrayList<>();
        for (int task = 0; task < tasks(); task++) {
            RLock lock = lock(keyOf(task), "mutex");
            lock.lock();
            held.add(lock);
        }
        reply("\"got_in\": %.9f", monotonic());
        order();
        reply("\"left\": %.9f", monotonic());
        held.forEach(RLock::unlock);
    }

    private void timeCycles() throws Exception {
        RLock lock = lock(key(), (String) job.get("mode"));
        int cycles = (int) number(job, "cycles");
        order();
        List<String> took = new ArrayList<>();
        for (int cycle = -WARM_UP_CYCLES; cycle < cycles; cycle++) {
            long started = System.nanoTime();
            lock.lock();
            lock.unlock();
            if (cycle >= 0) {
                took.add(format("%.9f", (System.nanoTime() - started) / 1e9));
            }
        }
        reply("\"took\": [%s]", String.join(", ", took));
    }

    private void takeTurns() throws Exception {
        double ends = Double.parseDouble(order()) + number(job, "seconds");
        Collection<String> turns = new ConcurrentLinkedQueue<>();
        List<Thread> threads = new ArrayList<>();
        for (int task = 0; task < tasks(); task++) {
            int number = task;
            threads.add(started(() -> takeTurns(number, ends, turns)));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        reply("\"turns\": [%s], \"wall\": %.9f", String.join(", ", turns), wall() - monotonic());
    }

    private void takeTurns(int task, double ends, Collection<String> turns) throws Exception {
        boolean mixes = job.get("reads") != null;
        boolean writes = job.get("writers") == null || task < number(job, "writers");
        Random chance = new Random((long) number(job, "seed") * 1000 + task);
        String key = keyOf(task);
        RLock writer = lock(key, mixes || job.get("writers") != null ? "writer" : "mutex");
        RLock reader = lock(key, "reader");
        double section = number(job, "section");
        for (double asked = monotonic(); asked < ends; asked = monotonic()) {
            boolean now = mixes ? chance.nextDouble() >= number(job, "reads") : writes;
            RLock lock = now ? writer : reader;
            lock.lock();
            double gotIn = monotonic();
            if (section > 0 && gotIn < ends) {
                sleep(section);
            }
            double left = monotonic();
            turns.add(format("[%d, %d, %.9f, %.9f, %.9f, 0]", task, now ? 1 : 0, asked, gotIn, left));
            lock.unlock();
        }
    }

    private void waitForKilled() throws Exception {
        order();
        List<Thread> threads = new ArrayList<>();
        for (int task = 0; task < tasks(); task++) {
            String key = key() + "-" + task;
            threads.add(
                    started(
                            () -> {
                                RLock lock = lock(key, "mutex");
                                lock.lock();
                                double gotIn = wall();
                                lock.unlock();
                                reply("\"key\": \"%s\", \"got_in\": %.6f", key, gotIn);
                            }));
        }
        reply("\"asked\": %d", tasks());
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void waitTogether() throws Exception {
        order();
        AtomicInteger served = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        double[] last = new double[tasks()];
        CountDownLatch done = new CountDownLatch(tasks());
        for (int task = 0; task < tasks(); task++) {
            int number = task;
            started(
                    () -> {
                        try {
                            RLock lock = lock(key(), "mutex");
                            lock.lock();
                            last[number] = monotonic();
                            served.incrementAndGet();
                            lock.unlock();
                        } catch (RuntimeException failure) {
                            failed.incrementAndGet();
                        }
                        done.countDown();
                    });
        }
        reply("\"asked\": %d", tasks());
        order();
        double seconds = number(job, "seconds");
        done.await(Math.round(1000 * (seconds > 0 ? seconds : DRAIN_SECONDS)), TimeUnit.MILLISECONDS);
        double latest = 0;
        for (double moment : last) {
            latest = Math.max(latest, moment);
        }
        reply("\"served\": %d, \"last\": %.9f, \"errors\": {\"failed\": %d}", served.get(), latest, failed.get());
    }

    /** A lock is re-entrant for its thread: so each task is a thread. */
    private RLock lock(String key, String mode) {
        if (mode.equals("mutex")) {
            return redisson.getLock(key);
        }
        RReadWriteLock both = redisson.getReadWriteLock(key);
        return mode.equals("reader") ? both.readLock() : both.writeLock();
    }

    private interface Task {
        void run() throws Exception;
    }

    private static Thread started(Task task) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                task.run();
                            } catch (Exception failure) {
                                failure.printStackTrace();
                                System.exit(1);
                            }
                        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private int tasks() {
        return (int) number(job, "tasks");
    }

    private String key() {
        return (String) job.get("key");
    }

    private String keyOf(int task) {
        return key().replace("{task}", Integer.toString(task));
    }

    private static double number(Map<String, Object> job, String name) {
        return ((Number) job.get(name)).doubleValue();
    }

    private static String order() throws IOException {
        String line = INPUT.readLine();
        return line == null ? "" : line.strip();
    }

    private static String format(String text, Object... values) {
        return String.format(Locale.ROOT, text, values);
    }

    private static synchronized void reply(String text, Object... values) {
        System.out.println("{" + format(text, values) + "}");
        System.out.flush();
    }

    private static void sleep(double seconds) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep(Math.round(seconds * 1e9));
    }

    /** The clock that Python calls time.monotonic. */
    private static double monotonic() {
        return System.nanoTime() / 1e9;
    }

    private static double wall() {
        return System.currentTimeMillis() / 1e3;
    }
}
