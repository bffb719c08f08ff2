import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The real mqadmin, one command after the other in one JVM: each line of input is the arguments of a command, separated by tabs;
 * each answer is a line with the number of bytes that the command printed, and then those bytes, standard output and standard
 * error together, as a person sees them.
 *
 * Run from source: java -cp 'lib/*' AdminShell.java
 */
public final class AdminShell {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(stream);
            System.setErr(stream);
            MQAdminStartup.main0(line.split("\t"), null);
            stream.flush();
            answers.println(printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
        System.exit(0);
    }
}
