set encoding utf8
set terminal svg size 800,500 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Speed, by KV period and load time"
set ylabel "tokens/s, median and quartiles"
set xlabel "KV period, tokens" . "\n"
set key outside below center horizontal Left reverse samplen 2.5 spacing 1.25 width -1.8
set logscale x 2
set autoscale xfix
set offsets graph 0.03, graph 0.03, 0, 0
set xrange [*:*]
set yrange [0:*]
$series0 << END
1 20.5164626 19.4812476 21.9565994 
2 20.038322 18.4376378 21.4284856 
4 20.1335084 18.903197 20.854868 
8 19.8257058 17.7398826 20.9165999 
16 20.558409 19.3026765 21.8745306 
32 19.2435301 18.5397976 19.8103653 
END
$series1 << END
1.02 16.3243871 15.4447477 16.7833967 
2.04 15.6884503 15.280587 17.8405577 
4.08 15.6153341 14.704607 17.508263 
8.16 16.0583107 15.4385168 16.8594545 
16.32 16.1378226 14.5266125 16.983803 
32.64 16.6338294 15.321804 17.2012675 
END
plot \
	$series0 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#0072B2" notitle, \
	$series0 using 1:2 with linespoints lw 2 dt 1 pt 7 ps 0.8 lc rgb "#0072B2" title "load 5.32 ms", \
	$series1 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#D55E00" notitle, \
	$series1 using 1:2 with linespoints lw 2 dt 1 pt 5 ps 0.8 lc rgb "#D55E00" title "load 10.63 ms"
