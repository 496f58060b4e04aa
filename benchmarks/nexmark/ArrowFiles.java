import java.io.BufferedInputStream;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.api.python.shaded.org.apache.arrow.memory.BufferAllocator;
import org.apache.flink.api.python.shaded.org.apache.arrow.memory.RootAllocator;
import org.apache.flink.api.python.shaded.org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.legacy.table.connector.source.SourceFunctionProvider;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.runtime.arrow.ArrowReader;
import org.apache.flink.table.runtime.arrow.ArrowUtils;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;

/**
 * The connector `arrow-files`: subtask N reads the Arrow stream of the file N of a folder, `path`.
 *
 * <p>PyFlink's own source of Arrow batches keeps all of them in the plan of the job, as text, and on the heap.
 */
public final class ArrowFiles implements DynamicTableSourceFactory {
    private static final ConfigOption<String> PATH = ConfigOptions.key("path").stringType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "arrow-files";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(PATH);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        RowType type = (RowType) context.getPhysicalRowDataType().getLogicalType();
        return new Table(type, context.getCatalogTable().getOptions().get(PATH.key()));
    }

    private record Table(RowType type, String path) implements ScanTableSource {
        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            return SourceFunctionProvider.of(new Source(type, path), true);
        }

        @Override
        public DynamicTableSource copy() {
            return this;
        }

        @Override
        public String asSummaryString() {
            return "ArrowFiles";
        }
    }

    private static final class Source extends RichParallelSourceFunction<RowData>
            implements ResultTypeQueryable<RowData> {
        private final RowType type;
        private final String path;
        private volatile boolean running = true;

        Source(RowType type, String path) {
            this.type = type;
            this.path = path;
        }

        @Override
        public void run(SourceContext<RowData> output) throws Exception {
            int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            try (BufferAllocator memory = new RootAllocator();
                    InputStream file = new BufferedInputStream(Files.newInputStream(Path.of(path, "" + subtask)));
                    ArrowStreamReader batches = new ArrowStreamReader(file, memory)) {
                ArrowReader rows = ArrowUtils.createArrowReader(batches.getVectorSchemaRoot(), type);
                while (running && batches.loadNextBatch()) {
                    int count = batches.getVectorSchemaRoot().getRowCount();
                    for (int i = 0; i < count; i++) {
                        output.collect(rows.read(i));
                    }
                }
            }
        }

        @Override
        public void cancel() {
            running = false;
        }

        @Override
        public TypeInformation<RowData> getProducedType() {
            return InternalTypeInfo.of(type);
        }
    }
}
